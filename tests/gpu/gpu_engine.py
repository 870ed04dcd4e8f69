"""An engine in this process, without sockets: the loop's queues in memory, a step at a time."""

import gc
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from engine_harness import MemoryChannel

from engine_core.build import Engine, build_engine
from ipc.codec import pack_ids, unpack_floats, unpack_ids
from ipc.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig, TransportConfig
from ipc.messages import Abort, Add, Failed, Outputs
from ipc.params import SamplingParams

OWNER = b"gateway"


@dataclass
class Result:
    """What came of a request. ``failure``: the code of ``Failed``."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: bytes = b""
    finish: int | None = None
    failure: str | None = None


def make_config(folder: Path, device: str, **settings: Any) -> EngineConfig:
    """Random weights; each setting goes into the part of the tree that has a field of its name."""
    parts: dict[type, dict[str, Any]] = {
        ModelConfig: {"model": str(folder), "load_format": "dummy", "device": device},
        CacheConfig: {"enable_prefix_caching": False},
        SchedulerConfig: {},
    }
    for name, value in settings.items():
        kind = next((kind for kind in parts if name in kind.__struct_fields__), None)  # type: ignore[attr-defined]
        if kind is None:
            raise TypeError(f"no part of the engine's config has {name}")
        parts[kind][name] = value
    return EngineConfig(
        model=ModelConfig(**parts[ModelConfig]),
        cache=CacheConfig(**parts[CacheConfig]),
        scheduler=SchedulerConfig(**parts[SchedulerConfig]),
        transport=TransportConfig(endpoint="ipc://unused"),
        log_level="warning",
    )


class Driver:
    """One engine. ``results``: by request, everything since the last ``run``."""

    def __init__(self, folder: Path, device: str, **settings: Any) -> None:
        self.channel = MemoryChannel()
        self.results: dict[int, Result] = {}
        self.engine: Engine = build_engine(make_config(folder, device, **settings), self.channel)

    def add(self, request_id: int, prompt_ids: list[int], params: SamplingParams) -> None:
        """A request arrives; the next step sees it."""
        message = Add(request_id, request_id, "m", pack_ids(prompt_ids), params, choices=((0, b""),))
        self.channel.inbox.append((OWNER, self.engine.build_request(OWNER, message)))

    def step(self) -> None:
        """One turn of the loop."""
        self.engine.core.step()
        self._collect()

    def run(self) -> dict[int, Result]:
        """Until idle."""
        self.step()
        while not self.engine.core.is_idle:
            self.step()
        self.engine.core.scheduler.check_integrity()
        results, self.results = self.results, {}
        return results

    def abort(self, request_ids: Iterable[int]) -> None:
        """End these, and what they left."""
        self.channel.inbox += [(OWNER, Abort(request_id)) for request_id in request_ids]
        self.run()

    def wait_for_graphs(self) -> None:
        """Until all decode steps are recorded that were asked for: that happens beside the others, on a thread."""
        self.engine.runner.finish_recordings()

    def close(self) -> None:
        """Give the device's memory back. More than once is no harm."""
        if not hasattr(self, "engine"):
            return
        self.engine.core.executor.shutdown()
        del self.engine
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _collect(self) -> None:
        for message in self.channel.sent:
            if isinstance(message, Failed):
                self.results.setdefault(message.request_id, Result()).failure = message.code
            for output in message.outputs if isinstance(message, Outputs) else ():
                result = self.results.setdefault(output.request_id, Result())
                result.token_ids += unpack_ids(output.token_ids)
                if output.logprobs is not None:
                    result.logprobs += unpack_floats(output.logprobs.logprobs)
                    result.top += output.logprobs.top_ids + output.logprobs.top_logprobs + output.logprobs.ranks
                result.finish = output.finish if output.finish is not None else result.finish
        self.channel.sent.clear()


def make_prompt(request_id: int, length: int, vocab_size: int) -> list[int]:
    """Ids that look random, others for each request."""
    return [(7919 * (request_id + 1) * (index + 3) + 31 * index * index) % vocab_size for index in range(length)]
