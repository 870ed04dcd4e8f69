"""A scripted engine, a tokenizer of single bytes and a gateway over them, for the tests of the HTTP side."""

import asyncio
import json
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import msgspec
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from gateway.chat_parsers import ChatParsers
from gateway.desk import FrontDesk, LocalDesk
from gateway.engine_stream import ChoiceOutput, GenerationRequest
from gateway.notifier import Notifier
from gateway.profile_questions import ProfileQuestions
from gateway.request_view import RequestView
from gateway.state import GatewayState
from gateway.tenants import Tenants
from gateway.text.chat_template import ChatTemplate
from gateway.text.generation_config import GenerationConfig
from gateway.text.tokenizer import Tokenizer
from ipc.codec import pack_floats, pack_ids
from ipc.config import GatewayConfig
from ipc.errors import EngineError
from ipc.messages import EventKind, FinishReason, Profile, Profiled, Ready, TokenLogprobs
from observability.metrics import Metrics
from observability.tracing import Tracing

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGED = ("AB", "ABC", "DE", "DEF")
EOS = 2
MAX_MODEL_LEN = 128
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_tokenizer() -> Tokenizer:
    """Ids 0 to 2 are special, 3 to 258 the bytes in the byte-level alphabet's order, then a few longer tokens."""
    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *MERGED]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = [("A", "B"), ("AB", "C"), ("D", "E"), ("DE", "F")]
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return Tokenizer(backend.to_str(), {"eos_token": "<|im_end|>"})


TOKENIZER = make_tokenizer()
NUM_IDS = TOKENIZER.num_token_ids


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def byte_id(byte: int) -> int:
    """The token of one byte, also of one that no text ends with."""
    return next(i for i in range(len(SPECIAL), NUM_IDS) if TOKENIZER.token_bytes(i) == bytes([byte]))


@dataclass
class Script:
    """What the engine does with a request. The reply is cut to max_tokens, else it ends with EOS."""

    replies: list[list[int]] = field(default_factory=lambda: [ids("Hello, world")])
    tokens_per_output: int = 1
    refusal: Exception | None = None
    is_accepted: bool = True  # False: the answer to the request does not come
    hold_after: int | None = None  # outputs; then nothing comes
    failure: Exception | None = None  # raised after hold_after outputs
    num_cached: int = 0
    logprob: float = -0.5
    choice_logprobs: tuple[float, ...] = ()  # by choice, where they differ
    finish: FinishReason = FinishReason.STOP
    events: tuple[tuple[EventKind, int], ...] = ()  # after the admission, with the first output


class FakeStream:
    """An output is there in the turn of the loop after the one before it was taken, and not earlier."""

    def __init__(self, request: GenerationRequest, script: Script, notifier: Notifier) -> None:
        self.request, self.script, self.notifier = request, script, notifier
        self.request_id = 1
        self.was_aborted = False
        self.has_left = False
        self.finished: list[tuple[int, int]] = []
        self.num_outputs = 0
        self.num_reads = 0  # outputs taken, and the one that is next
        self._arrived: list[ChoiceOutput] = []
        self._failure: Exception | None = None
        self._queue = self._make_outputs()

    async def __aenter__(self) -> "FakeStream":
        self._expect_next()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.has_left = True
        self.abort()

    async def accepted(self) -> None:
        if self.script.refusal is not None:
            raise self.script.refusal
        if not self.script.is_accepted:
            await asyncio.Event().wait()

    def take(self) -> list[ChoiceOutput]:
        if self._failure is not None:
            raise self._failure
        taken, self._arrived = self._arrived, []
        if taken:
            self._expect_next()
        return taken

    async def outputs(self) -> list[ChoiceOutput]:
        while not (taken := self.take()):
            await self.notifier.wait()
        return taken

    def _expect_next(self) -> None:
        self.num_reads += 1
        asyncio.get_running_loop().call_soon(self._arrive)

    def _arrive(self) -> None:
        if self.script.hold_after is not None and self.num_outputs >= self.script.hold_after:
            self._failure = self.script.failure
        elif self._queue:
            self.num_outputs += 1
            self._arrived = self._queue.pop(0)
            for output in self._arrived:
                if output.finish is not None and self.request.bill is not None:
                    self.request.bill.charge(250_000_000, 1_500_000_000)
        self.notifier.notify()

    def finish_choice(self, choice: int, num_tokens: int) -> None:
        self.finished.append((choice, num_tokens))

    def abort(self) -> None:
        self.was_aborted = self.was_aborted or bool(self._queue or self._arrived)

    def _make_outputs(self) -> list[list[ChoiceOutput]]:
        """Lists of outputs, a step each: the choices go in parallel, prompt log-probabilities with the first."""
        steps: list[list[ChoiceOutput]] = []
        for choice in range(self.request.n):
            for step, output in enumerate(self._choice_outputs(choice)):
                if step == len(steps):
                    steps.append([])
                steps[step].append(output)
        first = steps[0][0]
        now = time.monotonic_ns()
        first.events = ((EventKind.QUEUED, now - 3_000_000, 0), (EventKind.ADMITTED, now - 2_000_000, 0))
        first.events += tuple((kind, now - 1_000_000, value) for kind, value in self.script.events)
        first.num_cached_tokens = self.script.num_cached
        if self.request.num_prompt_logprobs >= 0:
            first.prompt_logprobs = self._logprobs(self.request.prompt_ids[1:], self.request.num_prompt_logprobs)
        return steps

    def _choice_outputs(self, choice: int) -> list[ChoiceOutput]:
        params = self.request.params
        reply = self.script.replies[choice % len(self.script.replies)]
        finish, tokens = FinishReason.LENGTH, reply[: params.max_tokens]
        if len(reply) < params.max_tokens:
            finish = self.script.finish
            if finish is FinishReason.STOP and params.eos_token_ids:
                tokens = [*reply, params.eos_token_ids[0]]
        size = self.script.tokens_per_output
        pieces = [tokens[start : start + size] for start in range(0, len(tokens), size)] or [[]]
        outputs = []
        for index, piece in enumerate(pieces):
            is_last = index == len(pieces) - 1
            logprobs = self._logprobs(piece, params.num_logprobs, choice) if params.num_logprobs >= 0 else None
            time_ns = time.monotonic_ns()
            outputs.append(
                ChoiceOutput(choice, piece, logprobs, finish if is_last else None, None, 0, None, (), time_ns)
            )
        return outputs

    def _logprobs(self, token_ids: list[int], num_top: int, choice: int = 0) -> TokenLogprobs:
        """The token itself first, then impossible ones."""
        count, top_ids, top = len(token_ids), [], []
        logprob = self.script.choice_logprobs[choice] if self.script.choice_logprobs else self.script.logprob
        for token_id in token_ids:
            others = [other for other in range(3, 4 + num_top) if other != token_id]
            top_ids += [token_id, *others][:num_top]
            top += [logprob, *([-math.inf] * (num_top - 1))][:num_top]
        values = pack_floats([logprob] * count)
        return TokenLogprobs(num_top, values, pack_ids([1] * count), pack_ids(top_ids), pack_floats(top))


class FakeEngineClient:
    """``script`` is asked for every request."""

    num_in_flight = 0
    is_connected = True

    def __init__(self, num_blocks: int = 64) -> None:
        self.script: Callable[[GenerationRequest], Script] = lambda request: Script()
        self.streams: list[FakeStream] = []
        self.is_ready = True
        self.views: list[RequestView] = []
        self.profiles = ProfileQuestions(self._profile)
        self.profile_answer: Profiled | None = None  # None: there is no engine
        self.profile_questions: list[Profile] = []
        self._ready = Ready(1, 0, "numerics", "digest", NUM_IDS, NUM_IDS, MAX_MODEL_LEN, 16, num_blocks, 0, 0)

    def answer(self, *replies: str | list[int], **script: Any) -> None:
        """Every request from now on gets these replies."""
        tokens = [ids(reply) if isinstance(reply, str) else reply for reply in replies] or [ids("Hello, world")]
        self.script = lambda request: Script(tokens, **script)

    @property
    def ready(self) -> Ready:
        if not self.is_ready:
            raise EngineError("the engine is not ready", code="not_ready", status=503)
        return self._ready

    def check_outage(self) -> None:
        """There is none."""

    def requests(self) -> list[RequestView]:
        return self.views

    def _profile(self, message: Profile) -> bool:
        self.profile_questions.append(message)
        if self.profile_answer is not None:
            self.profiles.receive(msgspec.structs.replace(self.profile_answer, number=message.number))
        return self.profile_answer is not None

    def submit(self, request: GenerationRequest, notifier: Notifier) -> FakeStream:
        stream = FakeStream(request, self.script(request), notifier)
        self.streams.append(stream)
        return stream


def make_state(client: FakeEngineClient, **changes: Any) -> GatewayState:
    config = GatewayConfig(**changes.pop("config", {}))
    values: dict[str, Any] = {
        "config": config,
        "model_names": ("tiny", "alias"),
        "client": client,
        "tokenizer": TOKENIZER,
        "chat_template": ChatTemplate({"default": TEMPLATE}, TOKENIZER),
        "defaults": GenerationConfig(eos_token_ids=(EOS,)),
        "metrics": Metrics(model_name="tiny"),
        "tracing": Tracing(None),
        "executor": ThreadPoolExecutor(1),
        "created": 1700000000,
        "version": "0.1.0",
    }
    tenants = Tenants(changes.pop("tenant_configs", ()), config.api_key)
    values |= changes
    desk = FrontDesk(config, tenants, values["client"], values["metrics"], values["created"])
    values |= {"desk": LocalDesk(desk), "tenants": tenants}
    values.setdefault("chat_parsers", ChatParsers.choose("auto", "auto", values["chat_template"]))
    return GatewayState(**values)


def strict_json(body: bytes | str) -> Any:
    """JSON without the constants that JSON does not have."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(body, parse_constant=refuse)


def sse_events(body: bytes) -> list[Any]:
    """The events of a stream; ``[DONE]`` stays text."""
    events = []
    for block in body.decode().split("\n\n")[:-1]:
        assert block.startswith("data: ")
        data = block.removeprefix("data: ")
        events.append(data if data == "[DONE]" else strict_json(data))
    return events


class AsgiCall:
    """One request over ASGI by hand: what was sent so far, a reader that may stop, a client that may leave."""

    def __init__(self, app: Any, path: str, body: Any = None, *, method: str = "POST", headers: Any = ()) -> None:
        self._app = app
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", b"test"), *headers],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._incoming.put_nowait({"type": "http.request", "body": data, "more_body": False})
        self.sent: list[dict[str, Any]] = []
        self.may_send = asyncio.Event()
        self.may_send.set()
        self._news = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        self._news.set()
        await self.may_send.wait()

    def start(self) -> "AsgiCall":
        self.task = asyncio.create_task(self._app(self.scope, self._incoming.get, self._send))
        return self

    async def run(self) -> "AsgiCall":
        self.start()
        assert self.task is not None
        await asyncio.wait_for(self.task, 10)
        return self

    async def until_sent(self, num_messages: int) -> None:
        async with asyncio.timeout(10):
            while len(self.sent) < num_messages:
                self._news.clear()
                await self._news.wait()

    def disconnect(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def ended(self) -> None:
        assert self.task is not None
        await asyncio.wait_for(self.task, 1)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def json(self) -> Any:
        return strict_json(self.body)

    @property
    def events(self) -> list[Any]:
        return sse_events(self.body)


def call(app: Any, path: str, body: Any = None, *, method: str = "POST", headers: Any = ()) -> AsgiCall:
    """One whole exchange."""

    async def exchange() -> AsgiCall:
        return await AsgiCall(app, path, body, method=method, headers=headers).run()

    return asyncio.run(exchange())


CHAT, COMP = "/v1/chat/completions", "/v1/completions"


def chat(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **fields}


def comp(prompt: Any = "hi", **fields: Any) -> dict[str, Any]:
    return {"prompt": prompt, "temperature": 0, **fields}
