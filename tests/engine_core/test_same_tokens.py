"""Contract 1: a request's tokens and log-probabilities depend on the request alone, bit for bit."""

import gzip
import json
import random
import time
from pathlib import Path

import pytest
import torch
import transformers
from engine_harness import CONFIG, VOCAB_SIZE, Harness, Result, make_requests, run_alone
from msgspec import structs

from engine_core.models.dummy import DummyWeights
from ipc.codec import pack_ids, unpack_floats, unpack_ids
from ipc.config import ProfileConfig
from ipc.messages import Abort, Add, FinishReason, Outputs, Profile, Profiled
from ipc.params import BeamParams, SamplingParams
from kernels.native.build import NativeUnavailable, find_compiler


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


@pytest.fixture(
    scope="module",
    params=[
        "native-bfloat16",
        "native-bfloat16-int8-int8",
        "native-bfloat16-int4",
        "native-float32",
        "reference-bfloat16",
        "reference-float32--int8",
    ],
)
def reference(request: pytest.FixtureRequest, folder: Path) -> tuple[str, list[Add], dict[tuple[int, int], Result]]:
    """Each request alone, no chunking, no cache, no overlap."""
    requests = make_requests(1)
    if request.param.startswith("native"):
        try:
            find_compiler()
        except NativeUnavailable as error:
            pytest.skip(str(error))
    results = run_alone(folder, request.param, requests)
    assert len({tuple(results[102, choice].token_ids) for choice in range(3)}) == 3, "choices must differ"
    return request.param, requests, results


Reference = tuple[str, list[Add], dict[tuple[int, int], Result]]


def skip_what_is_repeated(arithmetic: str, overlap: bool) -> None:
    """Blocks are moved as bytes and by the host. Of the slow reference that leaves its own way of copying them: for the
    blocks that have most in them, and with the overlap that makes it harder. All else is the native kernels'."""
    if arithmetic.startswith("reference") and not (overlap and arithmetic.endswith("int8")):
        pytest.skip("the native kernels have this case")


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("budget", [512, 37, 8])
def test_mixed_batches_in_any_chunking(reference: Reference, folder: Path, overlap: bool, budget: int) -> None:
    dtype, requests, expected = reference
    harness = Harness(folder, dtype, max_num_batched_tokens=budget, async_scheduling=overlap)
    draw = random.Random(budget)
    for request in draw.sample(requests, len(requests)):
        harness.add(request)
        for _ in range(draw.randrange(6)):  # they join at different times
            harness.step()
    assert harness.run() == expected


@pytest.mark.parametrize("overlap", [False, True])
def test_profiles(reference: Reference, folder: Path, tmp_path: Path, overlap: bool) -> None:
    """Operations are calls of their own while one runs; it begins and ends in the midst of requests."""
    dtype, requests, expected = reference
    profile = ProfileConfig(profile_dir=str(tmp_path))
    harness = Harness(folder, dtype, max_num_batched_tokens=37, async_scheduling=overlap, profile=profile)
    for request in requests:
        harness.add(request)
    for _ in range(3):
        harness.step()
    harness.channel.inbox.append((b"gateway", Profile(1, "start", 6)))
    harness.step()
    num_done = harness.engine.runner.num_layers_done
    for _ in range(3):
        harness.step()
    assert harness.engine.runner.num_layers_done > num_done, "steps under a profile are progress"
    for _ in range(4):
        harness.step()
    (begun,) = [message for message in harness.channel.sent if isinstance(message, Profiled)]
    assert begun.files
    assert harness.run() == expected
    trace = Path(begun.files[0])
    deadline = time.monotonic() + 60
    while not trace.exists():
        assert time.monotonic() < deadline, "the trace is not written"
        time.sleep(0.01)
    found = {event["name"] for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]}
    assert found >= {"octavo.launch", "octavo.commit", "octavo.forward", "octavo.sample", "octavo.read"}
    assert found & {"linear", "aten::mm", "aten::linear"}


def test_the_smallest_steps(reference: Reference, folder: Path) -> None:
    """One token a step, one sequence: fewer rows than a recording of a step works on."""
    dtype, requests, expected = reference
    harness = Harness(folder, dtype, max_num_batched_tokens=1, max_num_seqs=1)
    harness.add(requests[0])
    assert harness.run() == {(100, 0): expected[100, 0]}


@pytest.mark.parametrize("overlap", [False, True])
def test_prefix_hits(reference: Reference, folder: Path, overlap: bool) -> None:
    dtype, requests, expected = reference
    harness = Harness(folder, dtype, enable_prefix_caching=True, async_scheduling=overlap)
    for _ in range(3):
        for request in requests:
            harness.add(request)
        assert harness.run() == expected
    assert harness.engine.core.scheduler.counters.prefix_cache_hits > 300


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("caching", [False, True])
def test_preemption(reference: Reference, folder: Path, overlap: bool, caching: bool) -> None:
    dtype, requests, expected = reference
    harness = Harness(folder, dtype, num_kv_blocks=13, enable_prefix_caching=caching, async_scheduling=overlap)
    for request in requests:
        harness.add(request)
    assert harness.run() == expected
    assert harness.engine.core.scheduler.counters.preemptions > 0


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("caching", [False, True])
def test_preemption_by_swap(reference: Reference, folder: Path, overlap: bool, caching: bool) -> None:
    skip_what_is_repeated(reference[0], overlap)
    dtype, requests, expected = reference
    harness = Harness(
        folder,
        dtype,
        num_kv_blocks=13,
        enable_prefix_caching=caching,
        async_scheduling=overlap,
        kv_host_memory_bytes=1 << 20,
        preemption_mode="swap",
    )
    for request in requests:
        harness.add(request)
    assert harness.run() == expected
    counters = harness.engine.core.scheduler.counters
    assert counters.preemptions_by_swap == counters.preemptions > 0
    assert harness.tiers.use().blocks_in > 0


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("mode", ["swap", "auto"])
def test_prefixes_restored_from_host_memory(reference: Reference, folder: Path, overlap: bool, mode: str) -> None:
    """A pool that holds about one request, and host memory that holds all of them, or a few."""
    skip_what_is_repeated(reference[0], overlap)
    dtype, requests, expected = reference
    for memory in (1 << 20, 1 << 15):
        harness = Harness(
            folder,
            dtype,
            num_kv_blocks=13,
            enable_prefix_caching=True,
            async_scheduling=overlap,
            kv_host_memory_bytes=memory,
            preemption_mode=mode,
        )
        for _ in range(2):
            for request in requests:
                harness.add(request)
            assert harness.run() == expected
        assert harness.tiers.use().blocks_out > 0
        assert memory == 1 << 15 or harness.tiers.use().host_hit_tokens > 100


@pytest.mark.parametrize("overlap", [False, True])
def test_prefixes_restored_from_disk(
    reference: Reference, folder: Path, tmp_path: Path, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a second engine; a third one finds half of the files damaged, and computes what they held."""
    monkeypatch.setattr("engine_core.kv_cache.tier_costs.LEAST_PATIENCE", 100.0)
    skip_what_is_repeated(reference[0], overlap)
    dtype, requests, expected = reference
    for turn in range(3):
        harness = Harness(
            folder,
            dtype,
            num_kv_blocks=13,
            enable_prefix_caching=True,
            async_scheduling=overlap,
            kv_host_memory_bytes=1 << 20,
            kv_disk_path=str(tmp_path),
        )
        for request in requests:
            harness.add(request)
            assert harness.run().items() <= expected.items()
        harness.tiers.close()
        files = sorted(tmp_path.rglob("*.kv"))
        use = harness.tiers.use()
        assert use.disk_bytes == sum(file.stat().st_size for file in files) > 0
        assert turn != 1 or use.disk_hit_tokens > 40
        assert (use.corrupt_files > 0) is (turn == 2)
        for file in files[::2] if turn == 1 else []:
            data = bytearray(file.read_bytes())
            data[-1] ^= 1
            file.write_bytes(data)


def test_a_disk_that_cannot_be_used_costs_no_token(reference: Reference, folder: Path, tmp_path: Path) -> None:
    dtype, requests, expected = reference
    (tmp_path / "kv").write_text("not a folder")
    harness = Harness(
        folder,
        dtype,
        num_kv_blocks=13,
        enable_prefix_caching=True,
        kv_host_memory_bytes=1 << 20,
        kv_disk_path=str(tmp_path / "kv"),
    )
    for request in requests:
        harness.add(request)
    assert harness.run() == expected
    assert harness.tiers.use().blocks_out > 0


def test_resumed_in_a_second_engine(reference: Reference, folder: Path) -> None:
    """The first engine vanishes in the middle; the second gets the prompt and what was delivered."""
    dtype, requests, expected = reference
    first, second = Harness(folder, dtype), Harness(folder, dtype, max_num_batched_tokens=50)
    for request in requests:
        first.add(request)
    for _ in range(14):
        first.step()
    delivered = first.collect()
    for request in requests:
        choices = tuple(
            (choice, pack_ids(result.token_ids))
            for choice in range(len(request.choices))
            if (result := delivered.get((request.request_id, choice), Result())).finish is None
        )
        if choices:
            fields = {name: getattr(request, name) for name in request.__struct_fields__}
            second.add(Add(**{**fields, "choices": choices, "is_resumed": True}))
    continued = second.run()
    for key, result in expected.items():
        before, after = delivered.get(key, Result()), continued.get(key, Result())
        joined = Result(
            before.token_ids + after.token_ids,
            before.logprobs + after.logprobs,
            before.top + after.top,
            after.finish if before.finish is None else before.finish,
        )
        assert joined == result, key
    assert any(result.finish is None and result.token_ids for result in delivered.values())


@pytest.mark.parametrize("overlap", [False, True])
def test_two_threads_as_one(reference: Reference, folder: Path, overlap: bool) -> None:
    dtype, requests, expected = reference
    for budget in (512, 64, 8):
        harness = Harness(folder, dtype, max_num_batched_tokens=budget, async_scheduling=overlap, num_threads=2)
        for request in requests:
            harness.add(request)
        assert harness.run() == expected, budget


def test_prompt_logprobs_do_not_depend_on_chunks(reference: Reference, folder: Path) -> None:
    dtype, _, _ = reference
    prompt = [(17 * index + 3) % VOCAB_SIZE for index in range(100)]
    found = []
    for budget, caching in ((512, False), (32, True), (7, True)):
        harness = Harness(folder, dtype, max_num_batched_tokens=budget, enable_prefix_caching=caching)
        for request_id in (1, 2):
            params = SamplingParams(temperature=0.0, max_tokens=2)
            harness.add(Add(request_id, request_id, "m", pack_ids(prompt), params, num_prompt_logprobs=4))
            harness.step()
            while not harness.engine.core.is_idle:
                harness.step()
            outputs = [o for m in harness.channel.sent if isinstance(m, Outputs) for o in m.outputs]
            delivered = [output.prompt_logprobs for output in outputs if output.prompt_logprobs is not None]
            harness.collect()
            assert len(delivered) == 1
            assert len(delivered[0].logprobs) == 4 * (len(prompt) - 1)
            found.append(delivered[0])
    assert all(one == found[0] for one in found)


def test_an_aborted_neighbour_changes_nothing(reference: Reference, folder: Path) -> None:
    dtype, requests, expected = reference
    harness = Harness(folder, dtype, async_scheduling=True, max_num_batched_tokens=64)
    for request in requests:
        harness.add(request)
    for _ in range(9):
        harness.step()
    harness.channel.inbox.append((b"gateway", Abort(101)))
    results = harness.run()
    kept = {key: result for key, result in expected.items() if key[0] != 101}
    assert results[101, 0].finish == FinishReason.ABORT
    assert {key: result for key, result in results.items() if key[0] != 101} == kept


class Alternating:
    """A grammar: even and odd ids take turns, and the sequence knows whose turn it is only once it is committed."""

    def __init__(self, num_accepted: int = 0) -> None:
        self.num_accepted = num_accepted

    def accept(self, token_ids: tuple[int, ...]) -> None:
        self.num_accepted += len(token_ids)

    @property
    def is_complete(self) -> bool:
        return False

    def mask(self) -> bytes:
        pattern = 0xAAAAAAAA if self.num_accepted % 2 else 0x55555555
        return pattern.to_bytes(4, "little") * -(-VOCAB_SIZE // 32)


@pytest.mark.parametrize("budget", [512, 20])
def test_rows_under_a_grammar_are_drawn_after_the_commit(reference: Reference, folder: Path, budget: int) -> None:
    """With and without overlap the same tokens, all of them allowed, and the neighbours are as without grammar."""
    dtype, requests, expected = reference
    found = []
    for overlap in (False, True):
        harness = Harness(folder, dtype, async_scheduling=overlap, max_num_batched_tokens=budget)
        grammars = harness.engine.core._grammars
        assert grammars is not None
        grammars.compile = lambda kind, source, done: done(lambda params: Alternating())  # type: ignore[method-assign]
        for request in requests:
            grammar = ("test", "") if request.request_id in (101, 105) else None
            harness.add(structs.replace(request, grammar=grammar))
        found.append(harness.run())
    assert found[0] == found[1]
    for key, result in found[0].items():
        if key[0] in (101, 105):
            assert [token_id % 2 for token_id in result.token_ids] == [n % 2 for n in range(len(result.token_ids))]
        else:
            assert result == expected[key]


def search_by_hand(folder: Path, arithmetic: str, request: Add) -> list[Result]:
    """vLLM's beam search around an engine that is asked for one token at a time and knows of no beams."""
    prompt, params, beam = unpack_ids(request.prompt_ids), request.params, request.beam
    assert beam is not None
    harness = Harness(folder, arithmetic, enable_prefix_caching=True)
    one_token = SamplingParams(temperature=0.0, max_tokens=1, num_logprobs=2 * beam.width)
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    completed: list[tuple[float, list[int], FinishReason]] = []
    for _ in range(params.max_tokens):
        for index, (_, token_ids) in enumerate(live):
            harness.add(Add(index, index, "m", pack_ids(prompt + token_ids), one_token))
        results, found = harness.run(), []
        for index, (total, token_ids) in enumerate(live):
            size = 4 * 2 * beam.width
            top = results[index, 0].top
            for token_id, logprob in zip(unpack_ids(top[:size]), unpack_floats(top[size : 2 * size]), strict=True):
                found.append((total + logprob, [*token_ids, token_id]))
        completed += [(total, ids, FinishReason.STOP) for total, ids in found if ids[-1] in params.eos_token_ids]
        going = [(total, ids) for total, ids in found if ids[-1] not in params.eos_token_ids]
        live = sorted(going, key=lambda entry: -entry[0])[: beam.width]
    completed += [(total, ids, FinishReason.LENGTH) for total, ids in live]

    def score(entry: tuple[float, list[int], FinishReason]) -> float:
        length = len(prompt) + len(entry[1]) - (entry[2] is FinishReason.STOP)
        return -entry[0] / length**beam.length_penalty

    return [Result(ids, finish=finish) for _, ids, finish in sorted(completed, key=score)[: len(request.choices)]]


def test_beams_are_those_that_are_found_by_hand(reference: Reference, folder: Path) -> None:
    arithmetic, requests, expected = reference
    results = [expected[requests[6].request_id, choice] for choice in range(3)]
    found = [Result(one.token_ids, finish=one.finish) for one in results]
    assert found == search_by_hand(folder, arithmetic, requests[6])
    # With these weights in four bits every beam that is kept ends by itself.
    ends = {FinishReason.STOP} if "int4" in arithmetic else {FinishReason.STOP, FinishReason.LENGTH}
    assert {one.finish for one in found} == ends


def test_beams_are_those_of_transformers(folder: Path) -> None:
    """In float32, without an end: there the two count lengths in different ways and keep different hypotheses."""
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG)).eval()
    for name, parameter in model.named_parameters():
        DummyWeights(0).fill(name, parameter.data)
    prompt = [(17 * index + 3) % VOCAB_SIZE for index in range(40)]
    theirs = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        num_beams=5,
        num_return_sequences=5,
        do_sample=False,
        max_new_tokens=16,
        pad_token_id=0,
        eos_token_id=None,
    )
    harness = Harness(folder, "reference-float32", async_scheduling=True)
    choices = tuple((choice, b"") for choice in range(5))
    params = SamplingParams(max_tokens=16)
    harness.add(Add(1, 1, "m", pack_ids(prompt), params, choices=choices, beam=BeamParams(5)))
    ours = harness.run()
    assert [ours[1, choice].token_ids for choice in range(5)] == theirs[:, len(prompt) :].tolist()
