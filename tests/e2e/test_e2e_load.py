"""Many requests, large requests and none at all: nothing is lost, nobody is held up, nothing spins."""

import threading
import time

from e2e_http import CHAT, COMP, Exchange, chat, comp, long_runner, post, stream, wait_for_turn
from e2e_models import CORPUS, make_tokenizer
from e2e_process import ServerProcess, cpu_seconds, stopped


def test_more_messages_than_a_queue_of_a_thousand(server: ServerProcess) -> None:
    """1,500 sequences are sent to an engine that does not read, a third of them taken back: one answer each."""
    (engine,) = server.engine_pids()
    before = server.settled_metrics()
    prompts = [[5 + index] for index in range(50)]
    with stopped(engine):
        exchanges = [Exchange(server, COMP, comp(prompts, max_tokens=1, ignore_eos=True)) for _ in range(30)]
        wait_for_turn(server)
        for exchange in exchanges[20:]:
            exchange.close()
        wait_for_turn(server)
    for exchange in exchanges[:20]:
        assert exchange.read_head().status == 200
        assert exchange.read_body().count(b'"finish_reason":"length"') == 50
        exchange.close()
    after = server.settled_metrics()
    for reason, count in (("length", 1000), ("abort", 500), ("error", 0)):
        name = f"request_success_total{{finished_reason={reason}}}"
        assert after[name] - before[name] == count, reason


def test_a_gateway_that_stood_still(server: ServerProcess) -> None:
    """What the engine sent meanwhile is there afterwards, once and in order."""
    bodies = [long_runner(f"Stream {index}", max_tokens=120, temperature=1, seed=index) for index in range(4)]
    alone = [post(server, COMP, {**body, "stream": False})["choices"][0]["text"] for body in bodies]
    exchanges = [Exchange(server, COMP, body).read_events(2) for body in bodies]
    with stopped(server.pid):
        time.sleep(1)  # how long it stands still
    assert [exchange.ended_well().text() for exchange in exchanges] == alone
    for exchange in exchanges:
        exchange.close()


def test_huge_bodies_beside_a_stream(server: ServerProcess) -> None:
    """Refused for their length without being tokenized; health probes and the stream hardly notice."""
    body = long_runner("beside", max_tokens=250)
    alone = stream(server, COMP, body).text()
    statuses: list[int] = []
    text = "The lighthouse keeper counts ships. " * 140_000  # 5 MB

    def send() -> None:
        with Exchange(server, CHAT, chat(text)) as exchange:
            statuses.append(exchange.read_head().status)

    threads = [threading.Thread(target=send) for _ in range(4)]
    with Exchange(server, COMP, body) as exchange:
        exchange.read_events(2)
        for thread in threads:
            thread.start()
        delays = []
        while any(thread.is_alive() for thread in threads):
            started = time.monotonic()
            assert server.status() == 200
            delays.append(time.monotonic() - started)
        exchange.ended_well()
        gaps = [after - before for before, after in zip(exchange.event_times, exchange.event_times[1:], strict=False)]
    assert statuses == [400] * 4
    assert exchange.text() == alone
    # A tenth of a second on an idle machine; the bound is for a busy one, and far below what tokenizing would take.
    assert max(delays, default=0) < 1.5
    assert max(gaps) < 2


def test_a_long_text_is_tokenized_as_a_short_one(server: ServerProcess) -> None:
    """In a thread, beside a stream; compared with the library's own result."""
    text = " ".join(CORPUS) * 10
    assert len(text) > 4096
    with Exchange(server, COMP, long_runner("beside", max_tokens=60)) as exchange:
        exchange.read_events(2)
        found = post(server, "/tokenize", {"prompt": text})["tokens"]
        exchange.ended_well()
    assert found == make_tokenizer().encode(text).ids


def test_an_idle_server_does_nothing(server: ServerProcess) -> None:
    """Under five percent of a core for both processes together, and a first answer as quick as any other."""
    server.settled_metrics()
    pids = server.processes()
    assert len(pids) == 2
    before = sum(map(cpu_seconds, pids))
    started = time.monotonic()
    time.sleep(3)  # the time over which it is measured
    used = (sum(map(cpu_seconds, pids)) - before) / (time.monotonic() - started)
    assert used < 0.05


def test_every_request_is_counted_once(server: ServerProcess) -> None:
    """Counters after a known amount of work."""
    before = server.settled_metrics()
    prompt, question = list(range(100, 140)), "Is anybody counted twice?"
    for _ in range(2):  # the second time 32 of the 40 tokens are in the cache
        post(server, COMP, comp(prompt, max_tokens=7, ignore_eos=True, n=2))
    stream(server, CHAT, chat(question, max_tokens=5, ignore_eos=True))
    assert server.http.post(COMP, json=comp(temperature=-1)).status_code == 400
    num_chat = post(server, "/tokenize", {"messages": chat(question)["messages"]})["count"]
    after = server.settled_metrics()
    expected = {
        "prompt_tokens_total": 40 + 40 + num_chat,
        "generation_tokens_total": 14 + 14 + 5,
        "request_success_total{finished_reason=length}": 3,
        "request_success_total{finished_reason=abort}": 0,
        "request_success_total{finished_reason=stop}": 0,
        "request_success_total{finished_reason=error}": 0,
        "time_to_first_token_seconds_count": 3,
        "e2e_request_latency_seconds_count": 3,
        "request_queue_time_seconds_count": 3,
        "request_prefill_time_seconds_count": 3,
        "request_decode_time_seconds_count": 3,
        "request_prompt_tokens_sum": 80 + num_chat,
        "request_generation_tokens_sum": 33,
        "inter_token_latency_seconds_count": 12 + 12 + 4,
        "prefix_cache_hits_total": 32,
        "num_preemptions_total": 0,
        f"http_requests_total{{handler={COMP},method=POST,status=2xx}}": 2,
        f"http_requests_total{{handler={COMP},method=POST,status=4xx}}": 1,
        f"http_requests_total{{handler={CHAT},method=POST,status=2xx}}": 1,
    }
    assert {name: after[name] - before.get(name, 0) for name in expected} == expected
    for phase in ("queue", "prefill", "decode"):
        name = f"request_{phase}_time_seconds_sum"
        assert 0 <= after[name] - before[name] < 60
    assert after["iteration_tokens_total_sum"] - before["iteration_tokens_total_sum"] > 0
