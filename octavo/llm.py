"""The offline class: ``LLM("smollm2").generate(prompts, params)``. The server's engine and text, without HTTP.

An event loop on a thread of its own owns the engine process; the methods here block until all results are there.
"""

import asyncio
import atexit
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import msgspec
import zmq
from tqdm import tqdm

from gateway.engine_client import EngineClient
from gateway.engine_connection import EngineConnection
from gateway.engine_stream import GenerationRequest
from gateway.generation import Generation, TextOptions
from gateway.recorder import RequestRecorder
from gateway.schema.resolve import (
    COMPLETION_MAX_TOKENS,
    ModelLimits,
    check_model_limits,
    check_token_ids,
    resolve_max_tokens,
    resolve_sampling,
)
from gateway.schema.sampling import GenerationParams
from gateway.schema.structured import GrammarRequest, StructuredOutputs, grammar_request
from gateway.text.bad_words import encode_bad_words
from ipc.config import EngineConfig, GatewayConfig
from ipc.errors import ConfigError, EngineError, RequestError
from ipc.messages import Ready
from observability.metrics import Metrics
from octavo.child_process import ChildProcess
from octavo.engine_process import SocketDirectory, make_engine_config, start_engine
from octavo.model_source import resolve_model
from octavo.offline_outputs import RequestOutput, gather
from octavo.options import build_serve_config, serve_options
from octavo.text_parts import TextParts

T = TypeVar("T")

TEXT_OPTIONS = frozenset({"chat_template", "generation_config"})
"""What of the gateway's options concerns text, not HTTP."""

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


class LLM:
    """A model and its engine process. Options are the names of ``octavo serve``'s flags, with underscores.

    ``log_level`` is the engine's; this process's logging is left alone. Close it, or use it as a context manager.
    Raises ConfigError for what cannot be loaded; the methods raise RequestError for a prompt or a parameter that
    cannot be served and EngineError if the engine dies.
    """

    def __init__(self, model: str, *, log_level: str = "warning", **options: Any) -> None:
        _check_options(options)
        config = build_serve_config(model, {**options, "log_level": log_level})
        gateway = config.gateway
        folder = resolve_model(model)
        self._text = TextParts.load(
            folder, template_file=gateway.chat_template, with_defaults=gateway.generation_config == "auto"
        )
        self._max_logprobs = config.model_config.max_logprobs
        self._model = model
        self._metrics = Metrics(model_name=model)
        self._directory = SocketDirectory()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._engine: ChildProcess | None = None
        self._loop = asyncio.new_event_loop()
        self._client = EngineClient(self._loop, lambda stats: None, self._on_ready)
        # On Linux the engine dies with the thread that started it: this one lives until ``close``.
        self._thread = threading.Thread(target=self._loop.run_forever, name="octavo-llm", daemon=True)
        self._thread.start()
        self._is_closed = False
        atexit.register(self.close)
        try:
            engine_config = make_engine_config(
                msgspec.structs.replace(config.model_config, model=str(folder)),
                config.cache,
                config.scheduler,
                config.structured_output,
                directory=self._directory,
                incarnation=1,
                profile=config.profile,
                log_level=gateway.log_level,
            )
            self._run(self._start(engine_config))
        except BaseException:
            self.close()
            raise

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: GenerationParams | Sequence[GenerationParams] | None = None,
        *,
        structured_outputs: Mapping[str, Any] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Results in the order of the prompts. A prompt is text or token ids; ``params`` for all or one for each.

        ``structured_outputs``: what every output must look like, as the API's field of that name: {"regex": "[ab]+"}.
        """
        is_one = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))
        every: list[Prompt] = [prompts] if is_one else list(prompts)  # type: ignore[list-item, arg-type]
        encoded = [self._encode(prompt) for prompt in every]
        texts = [prompt if isinstance(prompt, str) else None for prompt in every]
        grammar = _grammar_of(structured_outputs)
        return self._generate(encoded, texts, params, COMPLETION_MAX_TOKENS, grammar, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: GenerationParams | Sequence[GenerationParams] | None = None,
        *,
        structured_outputs: Mapping[str, Any] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """One conversation, or several: a list of messages like OpenAI's, or a list of such lists."""
        is_one = len(messages) > 0 and isinstance(messages[0], Mapping)
        conversations: list[Any] = [messages] if is_one else list(messages)
        encoded = [self._text.chat_template.encode_chat(conversation) for conversation in conversations]
        default = self._text.defaults.max_new_tokens
        grammar = _grammar_of(structured_outputs)
        return self._generate(encoded, [None] * len(encoded), params, default, grammar, use_tqdm)

    def close(self) -> None:
        """End the engine process. Calling it again does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._directory.__exit__()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # ---- on the caller's thread

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C: the work must not go on for nobody
            raise

    def _encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self._text.tokenizer.encode(prompt, add_special_tokens=True)
        check_token_ids("prompt", prompt, ModelLimits.of(self._client.ready, self._max_logprobs))
        return list(prompt)

    def _generate(
        self,
        encoded: list[list[int]],
        texts: Sequence[str | None],
        params: GenerationParams | Sequence[GenerationParams] | None,
        default_max_tokens: int | None,
        grammar: GrammarRequest | None,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        _ = self._client.ready  # also without prompts: a closed LLM says so
        each = [params or GenerationParams()] * len(encoded) if not isinstance(params, Sequence) else list(params)
        if len(each) != len(encoded):
            raise ValueError(f"{len(encoded)} prompts, but {len(each)} params")
        generations = [
            self._make_generation(prompt_ids, one, default_max_tokens, grammar)
            for prompt_ids, one in zip(encoded, each, strict=True)
        ]
        with tqdm(total=len(generations), desc="generate", unit="prompt", disable=not use_tqdm) as bar:
            outputs = self._run(gather(generations, bar.update))
        for output, text in zip(outputs, texts, strict=True):
            output.prompt = text
        return outputs

    def _make_generation(
        self,
        prompt_ids: list[int],
        params: GenerationParams,
        default_max_tokens: int | None,
        grammar: GrammarRequest | None,
    ) -> Generation:
        limits = ModelLimits.of(self._client.ready, self._max_logprobs)
        tokenizer = self._text.tokenizer
        check_model_limits(params, limits)
        max_tokens = resolve_max_tokens(params.max_tokens, default_max_tokens, len(prompt_ids), limits)
        sampling = resolve_sampling(
            params, self._text.defaults, limits, max_tokens, lambda words: encode_bad_words(words, tokenizer)
        )
        request = GenerationRequest(
            model=self._model,
            prompt_ids=prompt_ids,
            params=sampling,
            arrival_ns=time.monotonic_ns(),
            n=params.n,
            num_prompt_logprobs=-1 if params.prompt_logprobs is None else params.prompt_logprobs,
            grammar=None if grammar is None else grammar.grammar,
            grammar_param="" if grammar is None else grammar.param,
        )
        options = TextOptions(
            stop=params.stop_strings,
            include_stop_str_in_output=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
        )
        return Generation(self._client, request, options, tokenizer, RequestRecorder(self._metrics, request))

    # ---- on the loop

    async def _start(self, config: EngineConfig) -> None:
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._engine = await start_engine(config)
        self._client.connect(EngineConnection(self._context, config.transport, self._loop))
        watch = self._watch = asyncio.create_task(self._watch_engine(self._engine))
        waits: set[asyncio.Future[Any]] = {self._ready, watch}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if not self._ready.done():
            raise ConfigError(f"the engine did not come up (status {watch.result()}); it says why above")

    def _on_ready(self, ready: Ready) -> None:
        if not self._ready.done():  # the engine may say it twice
            self._ready.set_result(None)

    async def _watch_engine(self, engine: ChildProcess) -> int:
        status = await engine.wait()
        self._client.disconnect(EngineError("the engine died", code="engine_died"))
        return status

    async def _stop(self) -> None:
        self._client.disconnect(EngineError("the LLM was closed", code="closed"))
        if self._engine is not None:
            await self._engine.kill()
        # Another thread's calls end with that error, which must reach them before the loop stops.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others)
        self._context.destroy(linger=0)


def _grammar_of(structured_outputs: Mapping[str, Any] | None) -> GrammarRequest | None:
    """Raises RequestError."""
    if structured_outputs is None:
        return None
    try:
        wanted = msgspec.convert(dict(structured_outputs), StructuredOutputs)
    except msgspec.ValidationError as error:
        raise RequestError(f"structured_outputs: {error}", param="structured_outputs") from error
    return grammar_request(None, wanted)


def _check_options(options: Mapping[str, Any]) -> None:
    """Raises ConfigError for a name that is no option, or one of the HTTP side, which is not there."""
    known = serve_options()
    for name in options:
        if name not in known or (known[name].section is GatewayConfig and name not in TEXT_OPTIONS):
            raise ConfigError(f"LLM has no option {name!r}")
