"""Beam search through real processes."""

import openai
from e2e_http import COMP, comp, complete, post
from e2e_process import ServerProcess


def test_beams_are_the_same_on_a_server_that_has_to_preempt(server: ServerProcess, small_server: ServerProcess) -> None:
    body = comp(use_beam_search=True, n=3, best_of=5, max_tokens=40, ignore_eos=True, logprobs=1)
    ample, tight = post(server, COMP, body), post(small_server, COMP, body)
    assert ample["choices"] == tight["choices"]
    assert len({choice["text"] for choice in ample["choices"]}) == 3
    assert ample["usage"]["completion_tokens"] == 3 * 40
    sums = [sum(choice["logprobs"]["token_logprobs"]) for choice in ample["choices"]]
    assert sums == sorted(sums, reverse=True)


def test_one_beam_without_an_end_is_greedy(server: ServerProcess) -> None:
    greedy = complete(server, max_tokens=20, ignore_eos=True)
    assert complete(server, max_tokens=20, ignore_eos=True, use_beam_search=True)["text"] == greedy["text"]


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "Say something."}],
        n=4,
        max_tokens=16,
        extra_body={"use_beam_search": True, "length_penalty": 0.5},
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert all(choice.finish_reason in ("stop", "length") for choice in answer.choices)
