"""The streaming client against a server whose delays are known: times, tokens, and every way to end."""

import time

import pytest
from loadtest_fake import serving

from loadtest.mix.chat import Patience, ask, error_message, first_model
from loadtest.mix.connections import Connections
from loadtest.mix.record import Outcome, Record, now


def asked(
    url: str, connections: Connections | None = None, patience: Patience | None = None, timeout: float = 5.0, n: int = 1
) -> tuple[Record, list[str]]:
    record = Record("x", now(), now(), num_choices=n)
    body = {"model": "m", "messages": [], "n": n}
    used = connections or Connections(url)
    texts = ask(used, body, record, "key", timeout, patience or Patience())
    if connections is None:
        used.close()
    return record, texts


def test_times_are_those_of_the_server() -> None:
    with serving(ttft=0.1, itl=0.02, num_tokens=6) as fake:
        record, texts = asked(fake.url)
        assert (record.outcome, record.message, record.status) == (Outcome.ANSWERED, "stop", 200)
        assert texts == ["word0 word1 word2 word3 word4 word5 "]
        assert fake.keys == ["bearer key"]
        gaps = list(record.itl())
        assert len(record.times) == 6
        assert len(gaps) == 5
        assert record.ttft is not None
        assert record.tpot is not None
        assert record.ttft == pytest.approx(fake.waits[0], abs=0.05)
        assert sum(gaps) / 5 == pytest.approx(sum(fake.gaps) / 5, abs=0.02)
        assert record.tpot == pytest.approx(sum(gaps) / 5, abs=1e-3)
        assert record.latency >= 0.2
        counted = (record.prompt_tokens, record.cached_tokens, record.num_tokens, record.is_counted)
        assert counted == (10, 4, 6, True)


def test_choices_have_gaps_of_their_own() -> None:
    with serving(itl=0.02, num_tokens=3) as fake:
        record, texts = asked(fake.url, n=3)
        assert texts == ["word0 word1 word2 "] * 3
        assert (len(record.times), len(list(record.itl())), record.num_tokens) == (9, 6, 9)
        assert min(record.itl()) > 0.015  # and not the nothing between two choices of one step
        assert record.tpot is not None
        assert record.tpot > 0.015


def test_without_usage_a_chunk_counts_as_a_token() -> None:
    with serving(has_usage=False, num_tokens=4) as fake:
        record, _ = asked(fake.url)
        assert (record.outcome, record.is_counted, record.num_tokens) == (Outcome.ANSWERED, False, 4)


@pytest.mark.parametrize(("told", "seconds"), [("7", 7.0), ("1.5", 1.5), ("", None), ("soon", None)])
def test_a_refusal_says_when_to_come_again(told: str, seconds: float | None) -> None:
    with serving(num_refusals=1, retry_after=told) as fake:
        record, _ = asked(fake.url)
        assert (record.outcome, record.message, record.retry_after) == (Outcome.REFUSED, "come again", seconds)


def test_a_date_says_so_too() -> None:
    with serving(num_refusals=1, retry_after="Fri, 01 Jan 2100 00:00:00 GMT") as fake:
        record, _ = asked(fake.url)
        assert record.retry_after is not None
        assert record.retry_after > 1e8


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"status": 500}, "HTTP 500: the server's own words"),
        ({"status": 400, "error": "no such model"}, "HTTP 400: no such model"),
        ({"breaks": True}, "the server's own words"),
        ({"ends_early": True}, "the stream ended early"),
        ({"is_stream": False}, "no event stream but 'application/json'"),
    ],
)
def test_every_error_is_a_failure_with_the_servers_words(settings: dict[str, object], said: str) -> None:
    with serving(**settings) as fake:
        record, _ = asked(fake.url)
        assert record.outcome is Outcome.FAILED
        assert said in record.message


def test_nobody_there() -> None:
    with serving() as fake:
        url = fake.url
    record, _ = asked(url)
    assert record.outcome is Outcome.FAILED
    assert "ConnectionRefusedError" in record.message


def test_no_end_within_the_time() -> None:
    with serving(ttft=5.0) as fake:
        record, _ = asked(fake.url, timeout=0.1)
        assert (record.outcome, record.message) == (Outcome.FAILED, "no end within 0.1 s")


@pytest.mark.parametrize("patience", [Patience(seconds=0.15), Patience(chunks=3)])
def test_who_loses_patience_hangs_up(patience: Patience) -> None:
    with serving(ttft=0.05, itl=0.05, num_tokens=100) as fake:
        record, _ = asked(fake.url, patience=patience)
        assert record.outcome is Outcome.HUNG_UP
        assert record.latency < 2.0
        assert 1 <= len(record.times) <= 4
        assert record.tpot is None
        deadline = time.monotonic() + 5
        while not fake.num_gone and time.monotonic() < deadline:
            time.sleep(0.01)
        assert fake.num_gone == 1  # the server sees it


def test_connections_are_kept_but_not_trusted() -> None:
    with serving() as fake:
        connections = Connections(fake.url + "/v1/")
        for _ in range(3):
            assert asked(fake.url, connections)[0].outcome is Outcome.ANSWERED
        assert fake.num_connections == 1
        connections.close()
    with serving(closes_idle=True) as fake:
        connections = Connections(fake.url)
        for _ in range(3):
            assert asked(fake.url, connections)[0].outcome is Outcome.ANSWERED
            time.sleep(0.02)
        assert fake.num_connections == 3
        connections.close()


def test_the_first_model() -> None:
    with serving() as fake:
        assert first_model(Connections(fake.url), None, 5.0) == "first"


@pytest.mark.parametrize("host", ["", "127.0.0.1:8000", "ftp://a"])
def test_a_host_is_a_base_url(host: str) -> None:
    with pytest.raises(ValueError, match="must be like"):
        Connections(host)
    assert Connections("http://a/openai").path == "/openai/v1"
    assert Connections("https://a/v1").path == "/v1"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": {"message": "a"}}', "a"),
        (b'{"error": "b"}', "b"),
        (b'{"message": "c"}', "c"),
        (b'{"detail": "d"}', "d"),
        (b"<html>", "<html>"),
        (b"[1]", "[1]"),
        (b"", "(no message)"),
    ],
)
def test_errors_of_many_servers(body: bytes, said: str) -> None:
    assert error_message(body) == said
