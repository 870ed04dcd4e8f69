"""A real engine core in this process, without sockets: what comes in is put into a list, what goes out is counted."""

import random
import time
from collections import Counter
from collections.abc import Callable

from engine_core.channel import Compiled, Inbound, ProfileNews
from engine_core.core import EngineCore
from engine_core.request_builder import RequestBuilder
from ipc.codec import pack_ids
from ipc.messages import Abort, Add, Failed, Outputs, ToGateway
from ipc.params import SamplingParams

OWNER = b"benchmark"


class LocalChannel:
    """Implements ``engine_core.channel.Channel``. ``num_outputs``: request id to outputs that it has had."""

    def __init__(self) -> None:
        self.inbox: list[Inbound] = []
        self.num_outputs: Counter[int] = Counter()

    def receive(self, *, timeout: float | None) -> list[Inbound]:
        """What was put in. Never waits: nobody would end it."""
        messages, self.inbox = self.inbox, []
        return messages

    def post(self, owner: bytes, message: Compiled | ProfileNews) -> None:
        """A grammar, from the thread that compiled it."""
        self.inbox.append((owner, message))

    def send(self, owner: bytes, message: ToGateway) -> None:
        """Raises RuntimeError for a failure: a figure without the work would mean nothing."""
        if isinstance(message, Failed):
            raise RuntimeError(f"request {message.request_id} failed: {message.message}")
        if isinstance(message, Outputs):
            for output in message.outputs:
                self.num_outputs[output.request_id] += 1

    def broadcast(self, message: ToGateway) -> None:
        """To nobody."""


class LocalCore:
    """Requests of random ids, new ones each time, so that no cache helps. ``largest_id``: ids lie below it."""

    def __init__(self, core: EngineCore, channel: LocalChannel, build_request: RequestBuilder, largest_id: int) -> None:
        self.core = core
        self._channel, self._build_request, self._largest_id = channel, build_request, largest_id
        self._draw = random.Random(0)
        self._num_requests = 0

    def add(self, num_prompt_tokens: int, num_output_tokens: int, grammar: tuple[str, str] | None = None) -> int:
        """A greedy request that ends at its length alone; its id. ``grammar``: one whose outputs are longer."""
        self._num_requests += 1
        prompt = [self._draw.randrange(self._largest_id) for _ in range(num_prompt_tokens)]
        add = Add(
            request_id=self._num_requests,
            arrival_ns=time.monotonic_ns(),
            model="",
            prompt_ids=pack_ids(prompt),
            params=SamplingParams(temperature=0.0, max_tokens=num_output_tokens),
            grammar=grammar,
        )
        self._channel.inbox.append((OWNER, self._build_request(OWNER, add)))
        return self._num_requests

    def has_begun(self, request_ids: list[int]) -> bool:
        """Whether each of them has had an output."""
        return all(request_id in self._channel.num_outputs for request_id in request_ids)

    def num_outputs(self, request_ids: list[int]) -> int:
        """How many they have had together."""
        return sum(self._channel.num_outputs[request_id] for request_id in request_ids)

    def step_until(self, condition: Callable[[], bool]) -> None:
        """Raises RuntimeError when there is nothing left to do before the condition holds."""
        while not condition():
            self.core.step()
            if not self.core.scheduler.has_work:  # a grammar is being compiled
                time.sleep(0.001)
            if self.core.is_idle and not condition():
                raise RuntimeError("the engine is idle before it did what was to be measured")

    def abort(self, request_ids: list[int]) -> None:
        """End those, and what the engine has begun for them."""
        self._channel.inbox.extend((OWNER, Abort(request_id)) for request_id in request_ids)
        self.core.step()
        while not self.core.is_idle:
            self.core.step()
