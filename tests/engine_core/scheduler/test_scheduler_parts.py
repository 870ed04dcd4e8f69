"""Budget, stopping and the step builder, each alone."""

import pytest
from fake_model import AlternatingGrammar
from hypothesis import given
from hypothesis import strategies as st
from sequence_cases import make_sequence

from engine_core.kv_cache.block import Block
from engine_core.scheduler.budget import MAX_STALL, MIN_ALONE, MIN_CHUNK, TARGET_SECONDS, TokenBudget
from engine_core.scheduler.step_builder import StepBuilder
from engine_core.scheduler.stopping import finish_reason, output_limit, stop_token_id
from engine_core.step import BlockTableUpdate, SlotBinding
from engine_core.step_cost import StepCost
from ipc.messages import EventKind, FinishReason
from ipc.params import SamplingParams

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH

# ---- budget


def test_a_budget_is_spent_and_refunded() -> None:
    budget = TokenBudget(10)
    budget.spend(4)
    budget.spend(6)
    assert budget.left == 0
    budget.refund(6)
    assert budget.left == 6


@pytest.mark.parametrize("num_tokens", [0, -1, 11])
def test_a_budget_is_not_overdrawn(num_tokens: int) -> None:
    budget = TokenBudget(10)
    with pytest.raises(ValueError, match="cannot spend"):
        budget.spend(num_tokens)
    assert budget.left == 10


COST = StepCost(floor=0.010, row=0.0003, sequence=0.0001, context=1e-7)


def load_of(spans: list[tuple[int, int]]) -> float:
    """Seconds of a step with a sequence for each (start, number of tokens)."""
    context = sum(sum(range(start + 1, start + num_tokens + 1)) for start, num_tokens in spans)
    return COST.seconds(sum(num_tokens for _, num_tokens in spans), len(spans), context)


@given(
    contexts=st.lists(st.integers(0, 8000), max_size=200),
    chunks=st.lists(st.tuples(st.integers(0, 8000), st.integers(2, 3000)), min_size=1, max_size=4),
)
def test_chunks_keep_a_step_within_its_time(contexts: list[int], chunks: list[tuple[int, int]]) -> None:
    """Decodes always run. The first chunk gets its 16 tokens; beyond that nothing exceeds the limit, and one token
    more than was given would have."""
    budget = TokenBudget(1024, COST)
    spans = [(start, 1) for start in contexts]
    for start, _ in spans:
        assert budget.fit(1, start) == 1
        budget.spend(1, start)
    limit = MAX_STALL * load_of(spans) if spans else TARGET_SECONDS
    for start, wanted in chunks:
        is_first = len(spans) == len(contexts)
        fitting = budget.fit(wanted, start)
        if is_first:
            assert fitting >= min(MIN_CHUNK, wanted, budget.left)
        is_small = not contexts and sum(num_tokens for _, num_tokens in spans) + fitting <= MIN_ALONE
        if fitting > (MIN_CHUNK if is_first else 0) and not is_small:
            assert load_of([*spans, (start, fitting)]) <= limit
        if MIN_CHUNK <= fitting < min(wanted, budget.left):
            assert load_of([*spans, (start, fitting + 1)]) > limit
        if fitting:
            budget.spend(fitting, start)
            spans.append((start, fitting))


def test_a_chunk_beside_few_decodes_is_shorter_than_one_alone() -> None:
    alone, beside = TokenBudget(2048, COST), TokenBudget(2048, COST)
    beside.spend(1, 500)
    assert alone.fit(4000, 0) == 741  # 250 ms
    assert beside.fit(4000, 0) == 65  # 20 ms
    beside.spend(65, 0)
    assert beside.is_spent
    assert beside.fit(1, 10) == 1
    beside.refund(65, 0)
    assert not beside.is_spent
    assert beside.fit(4000, 0) == 65


def test_a_slow_machine_computes_128_rows_where_nobody_waits() -> None:
    slow = StepCost(floor=1.0, row=0.1, sequence=0.0, context=0.001)
    alone, beside = TokenBudget(2048, slow), TokenBudget(2048, slow)
    assert alone.fit(4000, 0) == 128
    alone.spend(100, 0)
    assert not alone.is_spent
    assert alone.fit(4000, 0) == 28
    beside.spend(1, 0)
    assert beside.fit(4000, 4000) == MIN_CHUNK


def test_without_a_cost_the_number_of_tokens_is_all_that_counts() -> None:
    budget = TokenBudget(100)
    budget.spend(1, 10)
    assert budget.fit(4000, 0) == 99
    assert not budget.is_spent
    budget.spend(99)
    assert budget.is_spent
    assert budget.fit(5, 0) == 0


# ---- stopping


@pytest.mark.parametrize(
    ("output", "params", "reason", "stop_id"),
    [
        ((5,), {}, None, None),
        ((5, 2), {"eos_token_ids": (2,)}, STOP, None),
        ((2, 5), {"eos_token_ids": (2,)}, None, None),
        ((5, 7), {"stop_token_ids": (7,)}, STOP, 7),
        ((5, 7), {"stop_token_ids": (7,), "eos_token_ids": (7,)}, STOP, None),
        ((5, 2), {"eos_token_ids": (), "stop_token_ids": ()}, None, None),
        ((5, 2), {"eos_token_ids": (2,), "min_tokens": 2}, None, None),
        ((5, 5, 2), {"eos_token_ids": (2,), "min_tokens": 2}, STOP, None),
        ((5, 5, 2), {"eos_token_ids": (2,), "max_tokens": 3}, STOP, None),
        ((5, 5, 5), {"eos_token_ids": (2,), "max_tokens": 3}, LENGTH, None),
        ((5, 5, 2), {"eos_token_ids": (2,), "min_tokens": 3, "max_tokens": 3}, LENGTH, None),
        ((), {"max_tokens": 0, "stop_token_ids": (102,)}, LENGTH, None),
        ((), {"stop_token_ids": (102,)}, None, None),
    ],
)
def test_a_sequence_ends_by_its_own_tokens(
    output: tuple[int, ...], params: dict[str, object], reason: FinishReason | None, stop_id: int | None
) -> None:
    seq = make_sequence(output=output, params=SamplingParams(**params))  # type: ignore[arg-type]
    assert finish_reason(seq) is reason
    if reason is STOP:
        assert stop_token_id(seq) == stop_id


@pytest.mark.parametrize(("max_model_len", "limit"), [(4, 1), (10, 7), (19, 16), (20, 16), (3, 0)])
def test_the_context_ends_a_sequence_too(max_model_len: int, limit: int) -> None:
    assert output_limit(make_sequence().request, max_model_len) == limit
    for num_output in range(1, 18):
        seq = make_sequence(output=(5,) * num_output, max_model_len=max_model_len)
        assert finish_reason(seq) is (LENGTH if num_output >= limit else None)


# ---- step builder


def test_a_chunk_does_not_sample_and_the_last_one_does() -> None:
    step, seq = StepBuilder(TokenBudget(10)), make_sequence(num_prompt_tokens=5)
    step.schedule(seq, 3)
    assert step.budget.left == 7
    assert [(entry.start, entry.end, entry.samples) for entry in step.entries.values()] == [(0, 3, False)]
    seq.num_computed_tokens = 3
    step = StepBuilder(TokenBudget(10))
    step.schedule(seq, 2)
    assert [(entry.start, entry.end, entry.samples) for entry in step.entries.values()] == [(3, 5, True)]


def test_tokens_on_their_way_count() -> None:
    params = SamplingParams(max_tokens=2)
    seq = make_sequence(params=params)
    seq.num_computed_tokens, seq.num_pending = 3, 1
    step = StepBuilder(TokenBudget(10))
    step.schedule(seq, 1)
    (entry,) = step.entries.values()
    assert (entry.start, entry.end, entry.samples) == (3, 4, True)
    seq.num_computed_tokens, seq.num_pending = 4, 2
    step = StepBuilder(TokenBudget(10))
    step.schedule(seq, 1)
    assert not next(iter(step.entries.values())).samples, "two tokens are drawn already"


def test_nothing_is_sampled_without_output() -> None:
    for params, max_model_len in ((SamplingParams(max_tokens=0), 64), (SamplingParams(), 3)):
        step, seq = StepBuilder(TokenBudget(10)), make_sequence(params=params, max_model_len=max_model_len)
        step.schedule(seq, 3)
        assert not next(iter(step.entries.values())).samples


def test_an_entry_says_what_is_wanted() -> None:
    step, seq = StepBuilder(TokenBudget(10)), make_sequence(params=SamplingParams(num_logprobs=2))
    seq.slot, seq.grammar = 3, AlternatingGrammar()
    seq.request.num_prompt_logprobs = 4
    step.schedule(seq, 3)
    (entry,) = step.entries.values()
    assert (entry.slot, entry.num_logprobs, entry.num_prompt_logprobs, entry.needs_commit) == (3, 2, 4, True)
    seq.request.is_prompt_sent, seq.grammar = True, None
    step = StepBuilder(TokenBudget(10))
    step.schedule(seq, 3)
    (entry,) = step.entries.values()
    assert (entry.num_prompt_logprobs, entry.needs_commit) == (-1, False)


def test_a_removed_entry_gives_its_tokens_back() -> None:
    step, one, other = StepBuilder(TokenBudget(4)), make_sequence(1), make_sequence(2)
    step.schedule(one, 3)
    step.remove(one)
    step.remove(other)
    assert step.budget.left == 4
    assert not step.entries


def test_a_step_tells_of_each_block_once() -> None:
    seq, idle = make_sequence(), make_sequence(2)
    seq.slot, idle.slot = 1, 2
    seq.block_table.blocks, idle.block_table.blocks = [Block(4), Block(7)], [Block(9)]
    updates = []
    for _ in range(2):
        step = StepBuilder(TokenBudget(4))
        step.schedule(seq, 1)
        updates.append(step.build(1, (), 0).block_table_updates)
    seq.block_table.blocks.append(Block(2))
    step = StepBuilder(TokenBudget(4))
    step.schedule(seq, 1)
    updates.append(step.build(1, (), 0).block_table_updates)
    assert updates == [(BlockTableUpdate(1, 0, (4, 7)),), (), (BlockTableUpdate(1, 2, (2,)),)]
    assert idle.num_sent_blocks == 0


def test_a_step_is_a_picture_of_its_moment() -> None:
    step, seq = StepBuilder(TokenBudget(8)), make_sequence(output=(5,), choice=2)
    seq.slot = 1
    step.bind(seq)
    step.schedule(seq, 4)
    plan = step.build(9, ((1, 2),), 0)
    seq.token_ids.append(6)
    assert plan.bindings == (SlotBinding(1, [100, 101, 102, 5], 3, 2, seq.request.params),)
    assert (plan.step, plan.block_copies, plan.num_tokens) == (9, ((1, 2),), 4)


def test_a_step_counts_as_launched_once_it_is_built() -> None:
    prompt, output = make_sequence(1), make_sequence(2, output=(5,))
    output.num_computed_tokens = 3
    step = StepBuilder(TokenBudget(8))
    step.schedule(prompt, 2)
    step.schedule(output, 1)
    assert (prompt.num_computed_tokens, output.num_computed_tokens) == (0, 3)
    step.build(1, (), 77)
    assert (prompt.num_computed_tokens, prompt.num_pending, prompt.steps_in_flight) == (2, 0, 1)
    assert (output.num_computed_tokens, output.num_pending, output.steps_in_flight) == (4, 1, 1)
    assert prompt.take_events() == ((int(EventKind.CHUNK), 77, 2),)
    assert output.take_events() == ()
