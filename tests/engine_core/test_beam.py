"""Beam search against its oracle (``fake_model.search``, which the ledger asks): the same hypotheses whatever happens
beside it, one token computed a beam and step, and nothing held in the end."""

import random
from dataclasses import replace
from itertools import product

import fake_device
import pytest
from core_harness import GATEWAY, CoreHarness, Sizes, make_add
from fake_model import VOCAB_SIZE, hash_prefix, most_likely, search
from msgspec import structs

from engine_core.channel import UnfitRequest
from engine_core.step import SlotBinding
from ipc.codec import pack_ids, unpack_ids
from ipc.messages import Abort, Accepted, Add, Failed, FinishReason, Outputs, ToGateway
from ipc.params import MAX_BEAM_WIDTH, BeamParams, SamplingParams

both = pytest.mark.parametrize("overlap", [True, False])
OTHER = b"other gateway"
PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9]


def said(engine: CoreHarness, request_id: int = 1) -> list[tuple[list[int], FinishReason | None]]:
    """Tokens and finish reason of each choice. The ledger has compared them with the oracle already."""
    choices = engine.ledgers[GATEWAY].entries[request_id].choices
    return [(choice.token_ids, choice.finish) for choice in choices.values()]


def random_searches(seed: int, count: int) -> list[Add]:
    """Prompts that begin alike, ends of all kinds."""
    draw = random.Random(seed)
    adds = []
    for request_id in range(1, count + 1):
        width = draw.choice([1, 2, 3, 5])
        params = SamplingParams(
            max_tokens=draw.randrange(1, 9),
            eos_token_ids=draw.choice([(), (2,), (2, 3, 4)]),
            stop_token_ids=draw.choice([(), (5,)]),
            num_logprobs=draw.choice([-1, 0, 3, 11]),
        )
        beam = BeamParams(width, draw.choice([1.0, 0.0, 2.5, -1.0]))
        prompt = PROMPT[: draw.randrange(1, 10)] + [draw.randrange(VOCAB_SIZE)]
        adds.append(make_add(request_id, prompt, params, n=draw.randint(1, width), beam=beam))
    return adds


def neighbours() -> list[Add]:
    """Requests of every other kind, older and younger than the searches."""
    kinds: list[tuple[SamplingParams, dict[str, object]]] = [
        (SamplingParams(max_tokens=12, seed=1), {"n": 3}),
        (SamplingParams(max_tokens=9, eos_token_ids=(2, 3), num_logprobs=1), {}),
        (SamplingParams(max_tokens=6, seed=3), {"grammar": ""}),
        (SamplingParams(max_tokens=12), {"num_prompt_logprobs": 0}),
    ]
    return [
        make_add(100 + index, PROMPT[: 2 * index + 2], params, arrival_ns=arrival_ns, **fields)  # type: ignore[arg-type]
        for index, ((params, fields), arrival_ns) in enumerate(zip(kinds, (0, 3, 5, 20), strict=True))
    ]


SIZES = [
    Sizes(),
    Sizes(enable_prefix_caching=False),
    Sizes(max_num_seqs=2, max_num_batched_tokens=3),
    Sizes(num_blocks=6, max_num_batched_tokens=7),
    Sizes(num_blocks=6, enable_prefix_caching=False, policy="priority"),
    Sizes(num_blocks=20, block_size=1, max_num_seqs=3),
]


@both
@pytest.mark.parametrize("sizes", SIZES)
def test_a_search_says_what_the_oracle_says_alone(sizes: Sizes, overlap: bool) -> None:
    engine = CoreHarness(replace(sizes, overlap=overlap))
    for add in random_searches(1, 40):
        engine.add(add)
        engine.run_until_idle()


@both
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("seed", range(3))
def test_a_search_says_what_the_oracle_says_beside_others(sizes: Sizes, overlap: bool, seed: int) -> None:
    engine = CoreHarness(replace(sizes, overlap=overlap))
    draw = random.Random(seed)
    adds = random_searches(seed, 8) + neighbours()
    for add in draw.sample(adds, len(adds)):
        engine.add(add)
        for _ in range(draw.randrange(4)):
            engine.step()
    engine.run_until_idle()


def test_the_best_of_all_outputs_are_found_where_no_beam_is_dropped() -> None:
    """Brute force over all pairs of tokens: as many beams as there are tokens lose none."""
    engine = CoreHarness(Sizes())
    engine.add(make_add(1, PROMPT, SamplingParams(max_tokens=2), n=10, beam=BeamParams(12)))
    engine.run_until_idle()

    def logprob(pair: tuple[int, int]) -> float:
        first = dict(most_likely(hash_prefix(PROMPT), VOCAB_SIZE))[pair[0]]
        return first + dict(most_likely(hash_prefix([*PROMPT, pair[0]]), VOCAB_SIZE))[pair[1]]

    best = sorted(map(logprob, product(range(VOCAB_SIZE), repeat=2)), reverse=True)[:10]
    assert [logprob((ids[0], ids[1])) for ids, _ in said(engine)] == best


@both
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
@pytest.mark.parametrize("length", [1, 3, 4, 9])
def test_one_token_is_computed_a_beam_and_step(length: int, overlap: bool, enable_prefix_caching: bool) -> None:
    engine = CoreHarness(Sizes(enable_prefix_caching=enable_prefix_caching, overlap=overlap))
    engine.add(make_add(1, PROMPT[:length], SamplingParams(max_tokens=7), n=2, beam=BeamParams(3)))
    engine.run_until_idle()
    assert engine.device.num_tokens_computed == length + 3 * 6
    counters = engine.scheduler.counters
    assert (counters.prompt_tokens, counters.generation_tokens, counters.prefix_cache_hits) == (length, 1 + 3 * 6, 0)
    assert counters.prefix_cache_queries == (length if enable_prefix_caching else 0)


@both
def test_what_is_held_is_given_up_where_memory_is_short(overlap: bool) -> None:
    engine = CoreHarness(Sizes(num_blocks=5, enable_prefix_caching=False, overlap=overlap))
    engine.add(make_add(1, PROMPT, SamplingParams(max_tokens=9), n=4, beam=BeamParams(4)))
    engine.run_until_idle()
    assert engine.device.num_tokens_computed > len(PROMPT) + 4 * 8


@both
def test_a_step_may_be_preempted(overlap: bool) -> None:
    """It computes everything again, in chunks, while an older request grows."""
    sizes = Sizes(num_blocks=11, block_size=2, max_num_batched_tokens=3, overlap=overlap, enable_prefix_caching=False)
    engine = CoreHarness(sizes)
    engine.add(make_add(1, PROMPT[:2], SamplingParams(max_tokens=20)))
    engine.add(make_add(2, PROMPT, SamplingParams(max_tokens=5), n=3, beam=BeamParams(3)))
    engine.run_until_idle()
    assert engine.scheduler.counters.preemptions > 0
    assert "p" in engine.ledgers[GATEWAY].entries[2].choices[0].story


def test_a_search_ends_when_nothing_can_become_better() -> None:
    engine = CoreHarness(Sizes(max_model_len=200))
    params = SamplingParams(max_tokens=150, eos_token_ids=(1, 2, 3, 4, 5))
    engine.add(make_add(1, PROMPT, params, n=2, beam=BeamParams(4, 0.0)))
    engine.run_until_idle()
    assert len(engine.plans) < 60
    assert all(finish is FinishReason.STOP for _, finish in said(engine))


def test_the_length_penalty_decides_between_short_and_long() -> None:
    found = []
    for penalty in (-4.0, 4.0):
        engine = CoreHarness(Sizes())
        params = SamplingParams(max_tokens=8, eos_token_ids=(2, 3))
        engine.add(make_add(1, PROMPT[:2], params, n=1, beam=BeamParams(3, penalty)))
        engine.run_until_idle()
        found.append(len(said(engine)[0][0]))
    assert found[0] < found[1]


def test_logprobs_are_those_of_the_tokens_with_the_most_likely_at_each_place() -> None:
    engine = CoreHarness(Sizes())
    params = SamplingParams(max_tokens=5, num_logprobs=7)
    engine.add(make_add(1, PROMPT, params, n=2, beam=BeamParams(2), num_prompt_logprobs=0))
    outputs = [output for _, m in engine.run_until_idle() if isinstance(m, Outputs) for output in m.outputs]
    assert [output.prompt_logprobs is None for output in outputs] == [False, True]
    for output in outputs:
        found, token_ids = output.logprobs, unpack_ids(output.token_ids)
        assert found is not None
        for place in range(5):
            top = most_likely(hash_prefix(PROMPT + token_ids[:place]), VOCAB_SIZE)
            assert unpack_ids(found.top_ids)[7 * place : 7 * place + 7] == [token_id for token_id, _ in top[:7]]
            own = dict(top)[token_ids[place]]
            assert unpack_ids(found.ranks)[place] == 1 + sum(value > own for _, value in top)


def test_more_logprobs_than_a_search_needs_change_nothing() -> None:
    """A token that ends a beam counts among its 2 · width most likely only; without a length penalty early ends win."""
    engine = CoreHarness(Sizes(max_model_len=200))
    for request_id, start in enumerate(product(range(VOCAB_SIZE), repeat=2)):
        params = SamplingParams(max_tokens=20, eos_token_ids=(2, 3), num_logprobs=11)
        engine.add(make_add(request_id, list(start), params, beam=BeamParams(1, 0.0)))
    engine.run_until_idle()


def test_ids_without_a_token_are_nothing_to_go_on_with() -> None:
    engine = CoreHarness(Sizes())
    engine.core._beams._num_token_ids = 6
    add = make_add(1, PROMPT[:3], SamplingParams(max_tokens=4), n=3, beam=BeamParams(6))
    engine.channel.inbox.append((GATEWAY, engine.read(GATEWAY, add)))
    while not engine.core.is_idle or engine.channel.inbox:
        engine.core.step()
    outputs = [output for _, m in engine.channel.sent if isinstance(m, Outputs) for output in m.outputs]
    assert len(outputs) == 3
    assert all(token_id < 6 for output in outputs for token_id in unpack_ids(output.token_ids))


@pytest.mark.parametrize(("max_tokens", "failure"), [(1, "impossible"), (2, None)])
def test_fewer_outputs_than_choices_are_a_failure(max_tokens: int, failure: str | None) -> None:
    """Twelve tokens make twelve outputs of one token."""
    engine = CoreHarness(Sizes())
    engine.add(make_add(1, PROMPT, SamplingParams(max_tokens=max_tokens), n=13, beam=BeamParams(13)))
    engine.run_until_idle()
    assert engine.ledgers[GATEWAY].entries[1].failure == failure


# ---- ends


def outputs_of(sent: list[tuple[bytes, ToGateway]]) -> list[int | None]:
    return [output.finish for _, message in sent if isinstance(message, Outputs) for output in message.outputs]


@both
@pytest.mark.parametrize("num_steps", range(1, 16))
@pytest.mark.parametrize("sizes", [Sizes(max_num_seqs=2, max_num_batched_tokens=4), Sizes(num_blocks=6)])
def test_an_abort_at_any_time_frees_everything(num_steps: int, overlap: bool, sizes: Sizes) -> None:
    engine = CoreHarness(replace(sizes, overlap=overlap))
    engine.add(make_add(1, PROMPT, SamplingParams(max_tokens=12), n=2, beam=BeamParams(4)))
    for _ in range(num_steps):
        engine.step()
    engine.want(Abort(1))
    sent = engine.run_until_idle()
    assert outputs_of(sent) == [FinishReason.ABORT] * 2
    assert engine.kv.num_used_blocks == 0
    assert engine.ledgers[GATEWAY].entries[1].choices[0].story.startswith("q")


@both
@pytest.mark.parametrize("num_steps", range(0, 16, 3))
def test_a_gateway_that_is_gone_leaves_nothing_behind(num_steps: int, overlap: bool) -> None:
    engine = CoreHarness(Sizes(overlap=overlap, max_num_seqs=3, num_blocks=12))
    for request_id in range(1, 5):
        add = make_add(request_id, PROMPT, SamplingParams(max_tokens=6), n=2, beam=BeamParams(2))
        engine.add(add, GATEWAY if request_id % 2 else OTHER)
    for _ in range(num_steps):
        engine.step()
    engine.lose(OTHER)
    engine.run_until_idle()
    assert not len(engine.core._beams)


def test_all_choices_come_at_once_and_a_drained_engine_waits_for_them() -> None:
    engine = CoreHarness(Sizes())
    engine.add(make_add(1, PROMPT, SamplingParams(max_tokens=5), n=3, beam=BeamParams(3)))
    engine.step()
    engine.drain()
    engine.add(make_add(2, PROMPT, beam=BeamParams(1)))
    engine.core.run(lambda core: None)
    messages = [message for _, message in engine.channel.sent]
    assert [type(message) for message in messages] == [Failed, Outputs]
    assert len(messages[1].outputs) == 3  # type: ignore[union-attr]


@both
def test_a_broken_row_fails_the_search_alone(overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(binding: SlotBinding, position: int) -> bool:
        return binding.params.num_logprobs == 6 and position == len(PROMPT) + 2

    monkeypatch.setattr(fake_device, "breaks_here", breaks)
    engine = CoreHarness(Sizes(overlap=overlap, max_num_seqs=2))
    params = SamplingParams(max_tokens=5)
    for request_id, width in ((1, 3), (2, 2)):
        add = make_add(request_id, PROMPT, params, n=2, beam=BeamParams(width))
        engine.channel.inbox.append((GATEWAY, engine.read(GATEWAY, add)))
    while not engine.core.is_idle or engine.channel.inbox:
        engine.core.step()
    engine.scheduler.check_integrity()
    messages = [message for _, message in engine.channel.sent if not isinstance(message, Accepted)]
    assert [message.code for message in messages if isinstance(message, Failed)] == ["corrupt_logits"]
    (outputs,) = [message.outputs for message in messages if isinstance(message, Outputs)]
    assert [unpack_ids(output.token_ids) for output in outputs] == [
        expected.token_ids for expected in search(PROMPT, params, BeamParams(2), 2)
    ]


def test_an_id_is_in_use_until_the_search_ends() -> None:
    engine = CoreHarness(Sizes())
    add = make_add(1, PROMPT, SamplingParams(max_tokens=4), beam=BeamParams(2))
    engine.add(add)
    engine.step()
    engine.channel.inbox.append((OTHER, engine.read(OTHER, add)))
    engine.core.step()
    assert [m.code for owner, m in engine.channel.sent if isinstance(m, Failed) and owner == OTHER] == ["duplicate_id"]
    engine.channel.sent = []
    engine.run_until_idle()
    engine.ledgers.clear()
    engine.add(add)
    engine.run_until_idle()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"beam": BeamParams(0)}, "0 beams"),
        ({"beam": BeamParams(MAX_BEAM_WIDTH + 1)}, "65 beams"),
        ({"choices": ((0, b""), (1, b""), (2, b""))}, "3 choices"),
        ({"choices": ((0, pack_ids([1])),)}, "starts over"),
        ({"grammar": ("regex", "a")}, "no grammar"),
        ({"params": SamplingParams(max_tokens=0)}, "tokens to find"),
    ],
)
def test_a_search_that_makes_no_sense_is_unfit(change: dict[str, object], problem: str) -> None:
    engine = CoreHarness(Sizes())
    found = engine.read(GATEWAY, structs.replace(make_add(1, PROMPT, beam=BeamParams(2)), **change))
    assert isinstance(found, UnfitRequest)
    assert problem in found.problem
