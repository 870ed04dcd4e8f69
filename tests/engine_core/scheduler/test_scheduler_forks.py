"""n > 1: the prompt is computed once, choices begin at its end, and nothing is held for ever."""

import pytest
from core_harness import CoreHarness, Sizes, make_add
from fake_model import generate

from ipc.messages import Abort, Finish, FinishReason
from ipc.params import SamplingParams

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("length", [1, 4, 5, 8, 9])
def test_a_prompt_is_computed_once(length: int, overlap: bool, enable_prefix_caching: bool) -> None:
    engine = CoreHarness(Sizes(enable_prefix_caching=enable_prefix_caching, overlap=overlap))
    engine.add(make_add(1, PROMPT[:length], SamplingParams(max_tokens=3), n=4))
    engine.run_until_idle()
    # Each other choice computes the prompt's last token again, for its logits; then two tokens each.
    assert engine.device.num_tokens_computed == length + 3 + 4 * 2
    has_copies = (length - 1) % engine.sizes.block_size != 0
    assert sum(len(plan.block_copies) for plan in engine.plans) == (3 if has_copies else 0)


def test_choices_differ_and_are_the_same_every_time() -> None:
    said = []
    for max_num_seqs in (4, 1):
        engine = CoreHarness(Sizes(max_num_seqs=max_num_seqs))
        engine.add(make_add(1, PROMPT, SamplingParams(max_tokens=6, seed=7), n=4))
        engine.run_until_idle()
        (ledger,) = engine.ledgers.values()
        said.append([choice.token_ids for choice in ledger.entries[1].choices.values()])
    assert said[0] == said[1]
    assert len({tuple(ids) for ids in said[0]}) > 1


def test_more_choices_than_sequences_may_run() -> None:
    engine = CoreHarness(Sizes(max_num_seqs=2, num_blocks=5))
    engine.add(make_add(1, PROMPT, SamplingParams(max_tokens=5), n=9))
    engine.run_until_idle()


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_a_held_prompt_does_not_stand_in_its_own_way(overlap: bool, enable_prefix_caching: bool) -> None:
    """The pool holds one sequence and not the copy of a block besides: the claim on the prompt is given up."""
    sizes = Sizes(num_blocks=2, overlap=overlap, enable_prefix_caching=enable_prefix_caching)
    engine = CoreHarness(sizes)
    engine.add(make_add(1, PROMPT[:7], SamplingParams(max_tokens=2), n=3))
    engine.run_until_idle()


def test_a_held_prompt_is_given_up_for_an_earlier_request() -> None:
    engine = CoreHarness(Sizes(num_blocks=4, max_num_seqs=1))
    engine.add(make_add(2, PROMPT[:7], SamplingParams(max_tokens=9), n=2))
    for _ in range(4):
        engine.step()
    assert engine.scheduler.requests[2].fork is not None
    engine.add(make_add(1, PROMPT, SamplingParams(max_tokens=8)))
    engine.run_until_idle()
    story = engine.ledgers[b"gateway"].entries[2].choices[1].story
    assert story.startswith("qb"), "the second choice waited"


def test_a_held_prompt_is_given_up_before_anybody_is_preempted() -> None:
    engine = CoreHarness(Sizes(num_blocks=4, max_num_seqs=1))
    engine.add(make_add(2, PROMPT[:7], SamplingParams(max_tokens=3), n=2))
    engine.step()
    engine.step()
    engine.add(make_add(1, [0, *PROMPT[:4]], SamplingParams(max_tokens=9)))
    engine.run_until_idle()
    assert engine.scheduler.counters.preemptions == 0


def test_the_first_choice_ends_and_the_others_begin() -> None:
    """The first choice is told to stop while the others still wait for a place."""
    engine = CoreHarness(Sizes(max_num_seqs=1))
    engine.add(make_add(1, PROMPT, SamplingParams(max_tokens=9), n=3))
    for _ in range(4):
        engine.step()
    engine.want(Finish(1, 0, FinishReason.STOP, 1))
    engine.run_until_idle()
    choices = engine.ledgers[b"gateway"].entries[1].choices
    assert [choice.finish for choice in choices.values()] == [
        FinishReason.STOP,
        FinishReason.LENGTH,
        FinishReason.LENGTH,
    ]


@pytest.mark.parametrize("num_steps", range(8))
@pytest.mark.parametrize("overlap", [True, False])
def test_an_abort_at_any_time_frees_everything(num_steps: int, overlap: bool) -> None:
    engine = CoreHarness(Sizes(max_num_seqs=2, max_num_batched_tokens=4, overlap=overlap))
    engine.add(make_add(1, PROMPT, SamplingParams(max_tokens=9), n=4))
    for _ in range(num_steps):
        engine.step()
    if num_steps:
        engine.want(Abort(1))
    else:
        engine.step()
        engine.want(Abort(1))
    engine.run_until_idle()
    assert engine.kv.num_used_blocks == 0
    finishes = [choice.finish for choice in engine.ledgers[b"gateway"].entries[1].choices.values()]
    assert finishes == [FinishReason.ABORT] * 4


def test_choices_waiting_for_a_prompt_are_counted_as_such() -> None:
    engine = CoreHarness(Sizes(max_num_batched_tokens=4))
    engine.add(make_add(1, PROMPT, SamplingParams(max_tokens=2), n=3))
    engine.step()
    assert engine.scheduler.num_waiting == 2
    assert {reason.name: count for reason, count in engine.scheduler.waiting_by_reason().items()} == {"FORK": 2}
    engine.run_until_idle()
    assert engine.scheduler.num_waiting == 0


def test_resumed_choices_begin_together_where_their_prompt_is_known() -> None:
    """The first choice's KV is known beyond the prompt: no step completes it, and the others must not wait."""
    engine = CoreHarness(Sizes(overlap=False))
    params = SamplingParams(max_tokens=20)
    engine.add(make_add(1, PROMPT[:5], params))
    engine.run_until_idle()
    said = engine.ledgers[b"gateway"].entries[1].choices[0].token_ids
    engine.add(make_add(2, PROMPT[:5], params, choices={0: said[:12], 1: [], 2: []}))
    engine.step()
    assert engine.scheduler.num_waiting == 0
    assert len(engine.scheduler.running) == 3
    engine.run_until_idle()


def test_resumed_choices_fork_at_the_prompt_and_keep_their_tokens() -> None:
    engine = CoreHarness(Sizes(enable_prefix_caching=False, overlap=False))
    params = SamplingParams(max_tokens=8)
    engine.add(make_add(1, PROMPT, params, n=3))
    engine.run_until_idle()
    said = [choice.token_ids for choice in engine.ledgers[b"gateway"].entries[1].choices.values()]
    before = engine.device.num_tokens_computed
    engine.add(make_add(2, PROMPT, params, choices={1: said[1][:5], 2: said[2][:2]}))
    engine.run_until_idle()
    assert engine.device.num_tokens_computed - before == (9 + 5 + 2) + (1 + 2 + 5)


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_a_resumed_first_choice_may_be_told_to_stop_before_its_prompt_is_computed(enable_prefix_caching: bool) -> None:
    engine = CoreHarness(Sizes(max_num_batched_tokens=4, enable_prefix_caching=enable_prefix_caching))
    params = SamplingParams(max_tokens=5)
    said = generate(PROMPT, params, 0).token_ids
    engine.add(make_add(1, PROMPT, params, choices={0: said[:3], 1: [], 2: []}))
    engine.step()
    engine.want(Finish(1, 0, FinishReason.STOP, 2))
    engine.run_until_idle()
    choices = engine.ledgers[b"gateway"].entries[1].choices
    assert [choices[index].finish for index in range(3)] == [
        FinishReason.STOP,
        FinishReason.LENGTH,
        FinishReason.LENGTH,
    ]
