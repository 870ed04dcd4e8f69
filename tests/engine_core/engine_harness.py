"""One engine in this process, without a socket, and a mix of requests that asks for everything a sampler does."""

import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn
from unittest.mock import patch

from engine_core.build import Engine, build_engine
from engine_core.channel import Compiled, Inbound, ProfileNews
from engine_core.hardware import Hardware
from engine_core.kv_cache.tiers import KVTiers
from ipc.codec import pack_ids, unpack_ids
from ipc.config import CacheConfig, EngineConfig, ModelConfig, ProfileConfig, SchedulerConfig, TransportConfig
from ipc.messages import Add, Failed, Outputs, ToGateway
from ipc.params import BeamParams, SamplingParams
from kernels.native import create as create_native
from kernels.native.build import NativeUnavailable

VOCAB_SIZE = 131
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 320,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


@dataclass
class Result:
    """Everything of one choice that must not change."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: bytes = b""
    top: bytes = b""
    finish: int | None = None


class MemoryChannel:
    """The loop's queues without a socket."""

    def __init__(self) -> None:
        self.inbox: list[Inbound] = []
        self.sent: list[ToGateway] = []

    def receive(self, *, timeout: float | None) -> list[Inbound]:
        inbox, self.inbox = self.inbox, []
        return inbox

    def post(self, owner: bytes, message: Compiled | ProfileNews) -> None:
        self.inbox.append((owner, message))

    def send(self, owner: bytes, message: ToGateway) -> None:
        self.sent.append(message)

    def broadcast(self, message: ToGateway) -> None:
        self.sent.append(message)


def no_native(threads: int | None) -> NoReturn:
    raise NativeUnavailable("the reference is wanted")


class Harness:
    """One engine in this process. ``arithmetic``: BACKEND-DTYPE[-QUANTIZATION[-KV DTYPE]], either of them empty.

    On one thread: steps are so small that a second one would mostly be waited for, above all beside other processes.
    ``find_hardware``: what the engine runs on, instead of what the configuration says. ``step_seconds``: what steps
    cost, so that none is timed.
    """

    def __init__(
        self,
        folder: Path,
        arithmetic: str,
        *,
        num_threads: int = 1,
        profile: ProfileConfig = ProfileConfig(),  # noqa: B008 - immutable
        find_hardware: Callable[[EngineConfig], Hardware] | None = None,
        step_seconds: tuple[float, ...] = (),
        **settings: object,
    ) -> None:
        backend, dtype, quantization, kv_dtype = (arithmetic + "---").split("-")[:4]
        cache = {"num_kv_blocks": 200, "enable_prefix_caching": False, "kv_cache_dtype": kv_dtype or "auto"}
        scheduler = {"max_num_seqs": 16, "max_num_batched_tokens": 512, "async_scheduling": False}
        numbers = {}
        for name, value in settings.items():
            section = cache if name in CacheConfig.__struct_fields__ else scheduler
            (numbers if name in ModelConfig.__struct_fields__ else section)[name] = value  # type: ignore[assignment]
        self.channel = MemoryChannel()
        model = ModelConfig(
            model=str(folder),
            dtype=dtype,  # type: ignore[arg-type]
            quantization=quantization or None,  # type: ignore[arg-type]
            load_format="dummy",
            cpu_threads=num_threads,
            **numbers,
        )
        config = EngineConfig(
            model=model,
            cache=CacheConfig(**cache),  # type: ignore[arg-type]
            scheduler=SchedulerConfig(**scheduler),  # type: ignore[arg-type]
            profile=profile,
            transport=TransportConfig(endpoint="ipc://unused"),
            step_seconds=step_seconds,
        )
        create = create_native if backend == "native" else no_native
        with ExitStack() as patches:
            patches.enter_context(patch("engine_core.hardware.create_native", create))
            if find_hardware is not None:
                patches.enter_context(patch("engine_core.build.find_hardware", find_hardware))
            self.engine: Engine = build_engine(config, self.channel)

    def add(self, message: Add) -> None:
        self.channel.inbox.append((b"gateway", self.engine.build_request(b"gateway", message)))

    @property
    def tiers(self) -> KVTiers:
        return self.engine.core.scheduler.kv.tiers

    def step(self) -> None:
        self.engine.core.step()

    def run(self) -> dict[tuple[int, int], Result]:
        """Until idle; everything sent since the last call."""
        self.step()
        while not self.engine.core.is_idle:
            self.step()
        self.engine.core.scheduler.check_integrity()
        return self.collect()

    def collect(self) -> dict[tuple[int, int], Result]:
        results: dict[tuple[int, int], Result] = {}
        for message in self.channel.sent:
            assert not isinstance(message, Failed), message
            for output in message.outputs if isinstance(message, Outputs) else ():
                result = results.setdefault((output.request_id, output.choice), Result())
                result.token_ids += unpack_ids(output.token_ids)
                if output.logprobs is not None:
                    result.logprobs += output.logprobs.logprobs
                    result.top += output.logprobs.top_ids + output.logprobs.top_logprobs + output.logprobs.ranks
                if output.finish is not None:
                    assert result.finish is None, "a choice ended twice"
                    result.finish = output.finish
        self.channel.sent.clear()
        return results


def make_requests(seed: int) -> list[Add]:
    """A mix of everything that a sampler does; two share a long prefix, one has several choices; a beam search."""
    draw = random.Random(seed)
    shared = [draw.randrange(VOCAB_SIZE) for _ in range(70)]
    kinds = [
        SamplingParams(temperature=0.0, max_tokens=24, num_logprobs=3),
        SamplingParams(temperature=1.0, seed=7, max_tokens=24, num_logprobs=0),
        SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=2**63 + 11, max_tokens=30, num_logprobs=2),
        SamplingParams(
            temperature=1.3, min_p=0.02, seed=3, max_tokens=20, num_logprobs=1, min_tokens=8, eos_token_ids=(5,)
        ),
        SamplingParams(
            temperature=0.9,
            presence_penalty=0.7,
            frequency_penalty=0.4,
            repetition_penalty=1.2,
            seed=4,
            max_tokens=28,
            num_logprobs=1,
            logit_bias=((3, 2.5), (90, -4.0)),
            bad_words=((8,), (9, 10)),
        ),
        SamplingParams(temperature=0.0, repetition_penalty=1.3, max_tokens=26, num_logprobs=1),
        SamplingParams(max_tokens=18, num_logprobs=1, eos_token_ids=(0, 60, 120)),
    ]
    requests = []
    for index, params in enumerate(kinds):
        length = draw.choice([1, 5, 15, 16, 17, 33, 48, 75])
        prompt = [draw.randrange(VOCAB_SIZE) for _ in range(length)]
        if index in (1, 2, 4):
            prompt = shared + prompt[: draw.randrange(1, 9)]
        choices = ((0, b""), (1, b""), (2, b"")) if index in (2, 6) else ((0, b""),)
        requests.append(
            Add(
                request_id=100 + index,
                arrival_ns=index,
                model="m",
                prompt_ids=pack_ids(prompt),
                params=params,
                choices=choices,
                beam=BeamParams(4) if index == 6 else None,
            )
        )
    return requests


def run_alone(folder: Path, dtype: str, requests: list[Add]) -> dict[tuple[int, int], Result]:
    harness, results = Harness(folder, dtype, max_num_seqs=1), {}
    for request in requests:
        harness.add(request)
        results |= harness.run()
    return results
