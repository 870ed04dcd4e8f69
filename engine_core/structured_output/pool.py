"""Compiles grammars on threads beside the busy loop, and keeps those used last.

Equal grammars that come while one is compiled wait for it. Whoever waits too long is told so; the thread goes on.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from engine_core.sequence import Grammar, GrammarError
from engine_core.structured_output.backend import CompiledGrammar, GrammarBackend
from engine_core.structured_output.constraint import Constraint
from ipc.params import SamplingParams

MAX_KEPT = 128
MAX_KEPT_CHARACTERS = 4_000_000  # of their sources: what is compiled is several times as large
NUM_THREADS = 2

GrammarFactory = Callable[[SamplingParams], Grammar]
Done = Callable[[GrammarFactory | GrammarError], None]

log = structlog.get_logger("octavo.engine.grammar")


class GrammarPool:
    """``load_backend`` is called when the first grammar comes. ``vocab_size``: bits of a mask; ``timeout``: seconds."""

    def __init__(self, load_backend: Callable[[], GrammarBackend], vocab_size: int, timeout: float) -> None:
        self._load_backend, self._timeout = load_backend, timeout
        self._num_bytes = -(-vocab_size // 32) * 4
        self._backend: GrammarBackend | None = None
        self._load_lock = threading.Lock()
        self._lock = threading.Lock()  # of what follows
        self._kept: OrderedDict[tuple[str, str], CompiledGrammar] = OrderedDict()
        self._num_characters = 0
        self._waiting: dict[tuple[str, str], list[Done]] = {}
        self._executor = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="grammar")

    def compile(self, kind: str, source: str, done: Done) -> None:
        """``done`` is called once: at once by the caller's thread if the grammar is kept, else later by another."""
        key = (kind, source)
        with self._lock:
            compiled = self._kept.get(key)
            if compiled is not None:
                self._kept.move_to_end(key)
            else:
                waiting = self._waiting.setdefault(key, [])
                waiting.append(done)
                is_first = len(waiting) == 1
        if compiled is not None:
            done(self._factory(compiled))
        elif is_first:
            timer = threading.Timer(self._timeout, self._give_up, (key,))
            timer.daemon = True
            timer.start()
            self._executor.submit(self._compile, key, timer)

    def close(self) -> None:
        """Nothing is compiled any more."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    # ---- on other threads

    def _compile(self, key: tuple[str, str], timer: threading.Timer) -> None:
        result: CompiledGrammar | GrammarError
        try:
            result = self._get_backend().compile(*key)
        except GrammarError as error:
            result = error
        except Exception:  # a grammar must not take its thread, and with it all later ones, away
            log.exception("a grammar backend failed", kind=key[0])
            result = GrammarError("the grammar backend failed on it")
        timer.cancel()
        if not isinstance(result, GrammarError):
            self._keep(key, result)
        self._tell(key, result)

    def _get_backend(self) -> GrammarBackend:
        with self._load_lock:
            if self._backend is None:
                self._backend = self._load_backend()
            return self._backend

    def _give_up(self, key: tuple[str, str]) -> None:
        self._tell(key, GrammarError(f"compiling it takes more than {self._timeout:g} seconds"))

    def _tell(self, key: tuple[str, str], result: CompiledGrammar | GrammarError) -> None:
        with self._lock:
            waiting = self._waiting.pop(key, [])
        for done in waiting:
            done(result if isinstance(result, GrammarError) else self._factory(result))

    def _keep(self, key: tuple[str, str], compiled: CompiledGrammar) -> None:
        with self._lock:
            self._kept[key] = compiled
            self._num_characters += len(key[1])
            while len(self._kept) > 1 and (len(self._kept) > MAX_KEPT or self._num_characters > MAX_KEPT_CHARACTERS):
                (_, source), _ = self._kept.popitem(last=False)
                self._num_characters -= len(source)

    def _factory(self, compiled: CompiledGrammar) -> GrammarFactory:
        return lambda params: Constraint(compiled, params, self._num_bytes)
