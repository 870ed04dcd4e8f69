"""What can be seen of a server that runs, around a stub of an engine: its requests, and ``octavo top``."""

import asyncio
import os
import re
import signal
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest
from octavo_stubs import until
from test_gateway_processes import NUM_GATEWAYS, several, until_serving  # noqa: F401 - a fixture
from test_supervisor_life import Server, make_server, starts  # noqa: F401 - a fixture

from gateway.request_view import RequestState, RequestsView
from ipc.messages import WaitReason
from octavo.front import address
from octavo.top import top

SLOW = {"seconds_per_token": 0.005}


async def requests(http: httpx.AsyncClient) -> RequestsView:
    """On a connection of its own, so that any gateway may be asked."""
    answer = await http.get("/debug/requests", headers={"connection": "close"})
    assert answer.status_code == 200, answer.text
    return msgspec.json.decode(answer.content, type=RequestsView)


async def until_states(server: Server, *states: str) -> RequestsView:
    """Those that run have output, too."""
    async with asyncio.timeout(20):
        while True:
            view = await requests(server.http)
            is_begun = all(one.output_tokens for one in view.data if one.state == RequestState.RUNNING)
            if is_begun and [one.state.value for one in view.data] == list(states):
                return view
            await asyncio.sleep(0.005)


def test_a_request_is_seen_until_it_ends(make_server: Callable[..., Server]) -> None:  # noqa: F811
    async def test(server: Server) -> None:
        await server.until_status("/health", 200)
        assert (await requests(server.http)).data == []
        stream = server.complete("hello b", 400, stream=True, n=2)
        view = await until_states(server, "running")
        (one,) = view.data
        assert one.client_id.startswith("req-")
        assert (one.prompt_tokens, one.max_tokens, one.tenant, one.wait) == (7, 400, "default", None)
        assert 0 < one.output_tokens <= 800
        assert {choice.index for choice in one.choices} == {0, 1}
        assert one.time_to_first_token_seconds is not None
        assert (view.summary.num_running, view.summary.is_connected) == (1, True)
        await asyncio.to_thread(until, lambda: server.supervisor._client.last_beat is not None)
        os.kill(starts(server)[0], signal.SIGKILL)
        view = await until_states(server, "resuming")
        assert view.data[0].wait is None or view.data[0].wait.reason in ("engine", WaitReason.POLICY.name.lower())
        view = await until_states(server, "running")
        assert view.data[0].num_restarts == 1
        stream.cancel()
        await until_states(server)
        server.signal()

    assert make_server(SLOW).run(test) == 0


def test_any_gateway_knows_the_requests_of_all(several: Callable[..., Server]) -> None:  # noqa: F811
    async def test(server: Server) -> None:
        await until_serving(server)
        streams = [server.complete("b", 450, stream=True) for _ in range(2 * NUM_GATEWAYS)]
        await until_states(server, *["running"] * len(streams))
        for _ in range(NUM_GATEWAYS):
            view = await requests(server.http)
            assert view.summary.num_running == len(view.data) == len(streams)
        for stream in streams:
            stream.cancel()
        await until_states(server)
        server.signal()

    assert several(SLOW).run(test) == 0


@pytest.mark.parametrize("key", [None, "the-key"])
def test_top_sees_a_server(
    make_server: Callable[..., Server],  # noqa: F811
    capsys: pytest.CaptureFixture[str],
    key: str | None,
) -> None:
    async def test(server: Server) -> None:
        url = address(server._config.gateway, server.supervisor._listener)
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=20) as server.http:
            await server.until_status("/health", 200)
            stream = server.complete("b", 500, stream=True)
            await until_states(server, "running")
            watching = asyncio.create_task(asyncio.to_thread(top, url, api_key=key, interval=0.6, once=True))
            while not watching.done():  # the stub reports what it has done when it is asked for something
                await server.complete("a", 1)
            assert await watching == 0
            if key is not None:
                assert await asyncio.to_thread(top, url, interval=0.1, once=True) == 1
            stream.cancel()
            server.signal()

    options: dict[str, Any] = {} if key is None else {"api_key": (key,)}
    assert make_server(SLOW, uds=None, port=0, **options).run(test) == 0
    captured = capsys.readouterr()
    rate = re.search(r"tokens/s +output ([\d.]+)", captured.out)
    assert rate is not None
    assert float(rate[1]) > 0
    assert re.search(r"\d (ms|s) +running +\d+/500", captured.out)
    assert re.search(r"running \d   waiting 0", captured.out)
    if key is not None:
        assert "octavo top: 401: a valid API key is needed" in captured.err
