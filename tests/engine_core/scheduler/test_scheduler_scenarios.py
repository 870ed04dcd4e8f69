"""What users of other engines reported, and what the design promises, one situation after the other."""

import pytest
from core_harness import GATEWAY, CoreHarness, Sizes, make_add
from fake_model import generate
from ledger import Choice

from ipc.messages import Abort, EventKind, Failed, FinishReason, Outputs, WaitReason
from ipc.params import SamplingParams

both = pytest.mark.parametrize("overlap", [True, False])


def only_choice(engine: CoreHarness, request_id: int) -> Choice:
    return engine.ledgers[GATEWAY].entries[request_id].choices[0]


# ---- what can never fit


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "problem"),
    [
        (0, 5, "the prompt is empty"),
        (20, 13, "prompt and max_tokens make 33 tokens, the context holds 32"),
        (33, 0, "prompt and max_tokens make 33 tokens, the context holds 32"),
        (20, 10, "prompt and max_tokens make 30 tokens, the KV cache holds 24"),
        (25, 0, "prompt and max_tokens make 25 tokens, the KV cache holds 24"),
        (20, 5, None),
        (24, 1, None),
        (24, 0, None),
    ],
)
def test_what_can_never_fit_is_refused_and_the_rest_is_served(
    num_prompt: int, max_tokens: int, problem: str | None
) -> None:
    engine = CoreHarness(Sizes(num_blocks=6, max_model_len=32))
    engine.add(make_add(1, [1] * num_prompt, SamplingParams(max_tokens=max_tokens)))
    engine.add(make_add(2, [1], SamplingParams(max_tokens=1)))
    sent = engine.run_until_idle()
    failed = [message for _, message in sent if isinstance(message, Failed)]
    assert failed == ([Failed(1, -1, "impossible", problem)] if problem else [])
    assert only_choice(engine, 2).finish is FinishReason.LENGTH


@pytest.mark.parametrize("num_output", [4, 5])
def test_a_resumed_choice_that_has_all_its_tokens_is_refused(num_output: int) -> None:
    """It would be computed and could neither go on nor end."""
    engine = CoreHarness(Sizes())
    params = SamplingParams(max_tokens=4)
    said = generate([1, 2, 3], SamplingParams(max_tokens=9), 0).token_ids[:num_output]
    engine.add(make_add(1, [1, 2, 3], params, choices={1: [], 0: said}))
    engine.run_until_idle()
    assert engine.ledgers[GATEWAY].entries[1].failure == "impossible"


@both
def test_a_request_as_large_as_the_pool_ends_alone(overlap: bool) -> None:
    engine = CoreHarness(Sizes(num_blocks=6, max_num_batched_tokens=5, overlap=overlap))
    engine.add(make_add(1, [1] * 15, SamplingParams(max_tokens=10)))
    engine.run_until_idle()
    assert engine.scheduler.counters.preemptions == 0


# ---- preemption


@both
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_a_preempted_request_comes_back_the_same(overlap: bool, enable_prefix_caching: bool) -> None:
    """Eight with a common beginning in a pool for two: all say what they say alone (the ledger's oracle)."""
    engine = CoreHarness(
        Sizes(
            num_blocks=12,
            max_num_seqs=8,
            max_model_len=48,
            enable_prefix_caching=enable_prefix_caching,
            overlap=overlap,
        )
    )
    for index in range(8):
        engine.add(make_add(index, [1] * 8 + [index], SamplingParams(max_tokens=30, num_logprobs=1, seed=index)))
    engine.run_until_idle()
    counters = engine.scheduler.counters
    assert counters.preemptions > 0
    assert counters.generation_tokens == engine.ledgers[GATEWAY].num_tokens == 8 * 30
    assert counters.prompt_tokens == 8 * 9
    stories = "".join(only_choice(engine, index).story for index in range(8))
    assert stories.count("p") == stories.count("r") == counters.preemptions


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_the_first_in_order_is_never_preempted(policy: str) -> None:
    engine = CoreHarness(Sizes(num_blocks=10, max_num_seqs=4, policy=policy, max_model_len=40))
    for index in range(4):
        engine.add(make_add(index, [1, 2, index], SamplingParams(max_tokens=30), arrival_ns=9 - index, priority=index))
    engine.run_until_idle()
    first = 3 if policy == "fcfs" else 0
    assert engine.scheduler.counters.preemptions > 0
    assert "p" not in only_choice(engine, first).story


def test_preemption_is_recorded_with_who_got_the_blocks() -> None:
    engine = CoreHarness(Sizes(num_blocks=4, max_num_seqs=2, overlap=False))
    engine.add(make_add(1, [1, 2, 3], SamplingParams(max_tokens=12)))
    engine.add(make_add(2, [1, 2, 4], SamplingParams(max_tokens=12)))
    events = [
        (output.request_id, kind, value)
        for _, message in engine.run_until_idle()
        if isinstance(message, Outputs)
        for output in message.outputs
        for kind, _, value in output.events
    ]
    assert (2, EventKind.PREEMPTED, 1) in events
    assert [kind for request, kind, _ in events if request == 2].count(EventKind.RESUMED) == 1


# ---- prefix cache


@pytest.mark.parametrize("length", [15, 16, 17, 32, 33, 48])
@both
def test_a_prompt_that_is_known_is_found_but_for_its_last_token(length: int, overlap: bool) -> None:
    sizes = Sizes(num_blocks=16, block_size=16, max_num_batched_tokens=64, max_model_len=80, overlap=overlap)
    engine, prompt, params = CoreHarness(sizes), [index % 12 for index in range(length)], SamplingParams(max_tokens=3)
    for request_id in (1, 2, 3):
        engine.add(make_add(request_id, prompt, params))
        engine.run_until_idle()
    engine.add(make_add(4, prompt, params))
    engine.add(make_add(5, prompt, params, n=2))
    engine.run_until_idle()
    engine.add(make_add(6, [*prompt, 1, 2, 3], params))
    sent = engine.run_until_idle()
    known = (length - 1) // 16 * 16
    assert engine.scheduler.counters.prefix_cache_hits == 4 * known + length // 16 * 16
    assert engine.scheduler.counters.prefix_cache_queries == 6 * length + 3
    outputs = [output for _, message in sent if isinstance(message, Outputs) for output in message.outputs]
    assert {output.num_cached_tokens for output in outputs} == {length // 16 * 16}


def test_a_prefill_that_is_aborted_leaves_nothing_wrong_behind() -> None:
    """B finds what A has computed so far, and nothing of what A never came to."""
    engine = CoreHarness(Sizes(max_num_batched_tokens=4, overlap=False))
    prompt = list(range(12))
    engine.add(make_add(1, prompt))
    engine.step()
    engine.want(Abort(1))
    engine.add(make_add(2, prompt))
    engine.run_until_idle()
    assert engine.scheduler.counters.prefix_cache_hits == 4


def test_a_salt_keeps_requests_apart() -> None:
    engine = CoreHarness(Sizes())
    for request_id, salt in enumerate(["", "mine", "yours", "mine"]):
        engine.add(make_add(request_id, list(range(9)), cache_salt=salt))
        engine.run_until_idle()
    assert engine.scheduler.counters.prefix_cache_hits == 8


# ---- prompt log-probabilities


@both
@pytest.mark.parametrize("budget", [1, 3, 4, 5, 64])
@pytest.mark.parametrize("max_tokens", [0, 1, 4])
def test_prompt_logprobs_are_the_same_for_every_chunking(budget: int, max_tokens: int, overlap: bool) -> None:
    """The ledger compares position by position: complete, in order, sent once."""
    engine = CoreHarness(Sizes(max_num_batched_tokens=budget, overlap=overlap))
    engine.add(make_add(1, [3], SamplingParams(max_tokens=9)))
    for request_id in (2, 3):  # the second finds nothing in the cache that it could use, and publishes the same
        add = make_add(request_id, list(range(11)), SamplingParams(max_tokens=max_tokens), num_prompt_logprobs=2)
        engine.add(add)
        engine.run_until_idle()
        assert len(engine.ledgers[GATEWAY].entries[request_id].prompt_logprobs or ()) == 10


def test_prompt_logprobs_begin_again_after_a_preemption() -> None:
    engine = CoreHarness(Sizes(num_blocks=5, max_num_seqs=2, max_num_batched_tokens=3))
    engine.add(make_add(1, [1, 2, 3], SamplingParams(max_tokens=14)))
    for _ in range(3):
        engine.step()
    engine.add(make_add(2, list(range(12)), SamplingParams(max_tokens=2), num_prompt_logprobs=0))
    engine.run_until_idle()
    assert "p" in only_choice(engine, 2).story


@both
@pytest.mark.parametrize("num_steps", range(1, 6))
def test_an_aborted_prompt_sends_no_partial_logprobs(num_steps: int, overlap: bool) -> None:
    engine = CoreHarness(Sizes(max_num_batched_tokens=4, overlap=overlap))
    engine.add(make_add(1, list(range(11)), SamplingParams(max_tokens=8), num_prompt_logprobs=0))
    for _ in range(num_steps):
        engine.step()
    engine.want(Abort(1))
    engine.run_until_idle()
    assert only_choice(engine, 1).finish is FinishReason.ABORT


# ---- what a request waits for


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        (Sizes(max_num_batched_tokens=4), WaitReason.TOKEN_BUDGET),
        (Sizes(max_num_seqs=1), WaitReason.SEQUENCE_SLOTS),
        (Sizes(num_blocks=3), WaitReason.KV_BLOCKS),
    ],
)
def test_every_wait_has_a_name(sizes: Sizes, reason: WaitReason) -> None:
    engine = CoreHarness(sizes)
    for request_id in (1, 2, 3):
        engine.add(make_add(request_id, [1] * 8, SamplingParams(max_tokens=2)))
    engine.step()
    assert engine.scheduler.waiting_by_reason() == {reason: 1, WaitReason.POLICY: 1}
    events = [
        (kind, value)
        for _, message in engine.run_until_idle()
        if isinstance(message, Outputs)
        for output in message.outputs
        if output.request_id == 2
        for kind, _, value in output.events
    ]
    assert events[:3] == [(EventKind.QUEUED, 0), (EventKind.BLOCKED, reason), (EventKind.ADMITTED, 0)]


# ---- ends


@both
def test_a_length_limit_is_known_ahead_and_a_stop_is_seen_one_step_late(overlap: bool) -> None:
    engine = CoreHarness(Sizes(overlap=overlap))
    engine.add(make_add(1, [1, 2, 3], SamplingParams(max_tokens=6)))
    engine.run_until_idle()
    assert engine.device.num_tokens_computed == 3 + 5
    said = only_choice(engine, 1).token_ids
    engine = CoreHarness(Sizes(overlap=overlap))
    place = next(index for index in range(1, 5) if said[index] not in said[:index])
    engine.add(make_add(1, [1, 2, 3], SamplingParams(max_tokens=6, eos_token_ids=(said[place],))))
    engine.run_until_idle()
    assert engine.device.num_tokens_computed == 3 + place + overlap


@both
def test_corrupt_logits_fail_one_request_and_no_other(overlap: bool) -> None:
    engine = CoreHarness(Sizes(overlap=overlap))
    engine.add(make_add(1, [1, 2, 3], SamplingParams(max_tokens=5, logit_bias=((0, 2.0),)), n=2))
    engine.add(make_add(2, [1, 2, 3], SamplingParams(max_tokens=5)))
    engine.run_until_idle()
    entries = engine.ledgers[GATEWAY].entries
    assert entries[1].failure == "corrupt_logits"
    assert only_choice(engine, 2).finish is FinishReason.LENGTH


def test_a_failure_comes_after_the_outputs_of_its_step() -> None:
    """The first choice draws a good token in the step in which the second one's logits are found to be broken."""
    engine = CoreHarness(Sizes(overlap=False))
    params = SamplingParams(max_tokens=5, logit_bias=((0, 2.0),))
    engine.add(make_add(1, [1, 2, 3], params, choices={0: [], 1: generate([1, 2, 3], params, 1).token_ids}))
    sent = engine.run_until_idle()
    messages = [message for _, message in sent]
    assert isinstance(messages[-1], Failed)
    choices = engine.ledgers[GATEWAY].entries[1].choices
    assert [len(choice.token_ids) for choice in choices.values()] == [2, 2]


def test_the_integrity_check_finds_what_was_left_behind() -> None:
    engine = CoreHarness(Sizes())
    engine.run_until_idle()
    engine.add(make_add(1, [1, 2, 3]))
    engine.step()
    with pytest.raises(AssertionError, match="left behind"):
        engine.scheduler.check_integrity()
    engine.run_until_idle()
    engine.scheduler._free_slots.append(0)
    with pytest.raises(AssertionError, match="slot"):
        engine.scheduler.check_integrity()


# ---- grammar


@both
def test_a_grammar_sees_committed_tokens_only(overlap: bool) -> None:
    engine = CoreHarness(Sizes(overlap=overlap))
    engine.add(make_add(1, [1, 2], SamplingParams(max_tokens=6), n=2, grammar=""))
    engine.add(make_add(2, [1, 2], SamplingParams(max_tokens=6)))
    engine.run_until_idle()
    for choice in engine.ledgers[GATEWAY].entries[1].choices.values():
        assert [token_id % 2 for token_id in choice.token_ids] == [0, 1, 0, 1, 0, 1]
