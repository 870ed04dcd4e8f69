"""Faults: what counts as lost, what the tables say."""

import random

from benchmarks.faults import PART, Fault, compare, make_body, seconds_table, tokens_table
from benchmarks.token_stream import TokenStream


def test_what_is_missing_and_what_is_different() -> None:
    whole = TokenStream([1, 2, 3, 4], [-0.1, -0.2, -0.3, -0.4])
    assert compare([whole], [whole]) == (0, 0)
    assert compare([whole], [TokenStream([1, 2, 3], [-0.1, -0.2, -0.3])]) == (1, 0)
    assert compare([whole], [TokenStream([1, 2, 9, 4], [-0.1, -0.2, -0.3, -0.5])]) == (0, 2)
    assert compare([whole], [TokenStream([1, 2, 3, 4, 4], [-0.1, -0.2, -0.3, -0.4, -0.4])]) == (0, 1)
    assert compare([whole, whole], [whole, TokenStream()]) == (4, 0)


def test_a_stream_takes_tokens_and_the_error() -> None:
    stream = TokenStream()
    choice = {"token_ids": [5, 6], "logprobs": {"token_logprobs": [-1.0, -2.0]}}
    stream.take({"choices": [choice]}, 1.0)
    stream.take({"choices": [{"finish_reason": "length"}], "usage": None}, 2.0)
    stream.take({"choices": [{**choice, "token_ids": [7], "logprobs": None}]}, 3.0)
    assert (stream.token_ids, stream.logprobs, stream.times) == ([5, 6, 7], [-1.0, -2.0], [1.0, 1.0, 3.0])
    assert [stream.num_before(moment) for moment in (0.5, 1.0, 3.5)] == [0, 2, 3]
    stream.take({"error": {"message": "no engine"}}, 4.0)
    assert stream.error == "no engine"


def test_the_tables() -> None:
    good = Fault((2.0, 3.0, 4.5), 1.0, 1.5, 4000, 0, 0, ())
    slow = Fault((2.0, 3.0, 5.5), 1.0, 1.5, 4000, 0, 0, ())
    gone = Fault((), 0.0, 0.0, 0, 77, 0, ("the engine died",))
    assert [fault.is_survived for fault in (good, slow, gone)] == [True, True, False]
    table = tokens_table(3, 768, [good, slow, gone])
    assert table.title == "SIGKILL under 3 streams of 768 tokens together, 3 times"
    assert table.rows == [["2 of 3", "1", "77", "0"]]
    assert table.notes[-1] == "a stream failed: the engine died"
    first, second, third, total = seconds_table(3, [good, slow, gone]).rows
    assert first == ["1", "2.00", "3.00", "4.50", "4000", "1.00", "1.50", "1 of 1"]
    assert second[-1] == "0 of 1"
    assert third == ["3", "-", "-", "-", "-", "-", "-", "0 of 1"]
    assert (total[0], total[3], total[-1]) == ("all", "5.00 (4.50 - 5.50)", "1 of 3")


def test_the_command_line_is_the_load() -> None:
    options = PART.parse(["--quick", "--input-tokens", "5", "--largest-id", "9"])
    assert (options.rounds, options.streams) == (2, 32)
    greedy, drawn = (make_body(options, random.Random(1), number) for number in (0, 1))
    assert len(greedy["prompt"]) == 5
    assert max(greedy["prompt"]) < 9
    assert (greedy["temperature"], drawn["temperature"], drawn["seed"]) == (0, 1.0, 1)
