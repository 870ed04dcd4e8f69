"""The pool: answers once, compiles equal grammars once, forgets the oldest, gives up in time, survives its backend."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from engine_core.sequence import GrammarError
from engine_core.structured_output import pool as pool_module
from engine_core.structured_output.pool import GrammarPool

SECONDS = 30.0


class FakeBackend:
    """``gate``: what compiling waits for. Sources "broken" and "bug" fail."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.compiled: list[str] = []

    def compile(self, kind: str, source: str) -> Any:
        assert self.gate.wait(SECONDS)
        self.compiled.append(source)
        if source == "broken":
            raise GrammarError("broken it is")
        if source == "bug":
            raise ZeroDivisionError
        return FakeCompiled()


class FakeCompiled:
    def start(self) -> Any:
        return object()


class Answers:
    """What ``done`` was told."""

    def __init__(self) -> None:
        self._told = threading.Semaphore(0)
        self.results: list[Any] = []

    def __call__(self, result: Any) -> None:
        self.results.append(result)
        self._told.release()

    def wait(self, count: int = 1) -> None:
        for _ in range(count):
            assert self._told.acquire(timeout=SECONDS)


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
def pool(backend: FakeBackend) -> Iterator[GrammarPool]:
    made = GrammarPool(lambda: backend, 64, timeout=SECONDS)
    yield made
    backend.gate.set()
    made.close()


def ask(pool: GrammarPool, source: str) -> Any:
    answers = Answers()
    pool.compile("regex", source, answers)
    answers.wait()
    (result,) = answers.results
    return result


def test_a_kept_grammar_is_there_at_once(pool: GrammarPool, backend: FakeBackend) -> None:
    assert callable(ask(pool, "a"))
    answers = Answers()
    pool.compile("regex", "a", answers)
    assert len(answers.results) == 1
    assert backend.compiled == ["a"]
    pool.compile("choice", "a", answers)  # the same text of another kind is another grammar
    answers.wait(2)
    assert backend.compiled == ["a", "a"]


def test_equal_grammars_are_compiled_once(pool: GrammarPool, backend: FakeBackend) -> None:
    backend.gate.clear()
    answers = Answers()
    for _ in range(5):
        pool.compile("regex", "a", answers)
    backend.gate.set()
    answers.wait(5)
    assert backend.compiled == ["a"]


def test_errors_are_answers_and_not_kept(pool: GrammarPool, backend: FakeBackend) -> None:
    for _ in range(2):
        error = ask(pool, "broken")
        assert isinstance(error, GrammarError)
        assert str(error) == "broken it is"
    assert backend.compiled == ["broken", "broken"]


def test_a_bug_of_the_backend_is_an_answer_too(pool: GrammarPool) -> None:
    for _ in range(pool_module.NUM_THREADS + 1):  # no thread is lost
        assert isinstance(ask(pool, "bug"), GrammarError)
    assert callable(ask(pool, "a"))


def test_a_backend_that_cannot_be_loaded_is_an_answer(backend: FakeBackend) -> None:
    def load() -> Any:
        raise OSError("no such file")

    pool = GrammarPool(load, 64, timeout=SECONDS)
    assert isinstance(ask(pool, "a"), GrammarError)
    pool.close()


def test_who_waits_too_long_is_told_so(backend: FakeBackend) -> None:
    pool = GrammarPool(lambda: backend, 64, timeout=0.01)
    backend.gate.clear()
    error = ask(pool, "slow")
    assert isinstance(error, GrammarError)
    assert "0.01 seconds" in str(error)
    backend.gate.set()
    pool.close()


@pytest.mark.parametrize("limit", ["MAX_KEPT", "MAX_KEPT_CHARACTERS"])
def test_the_longest_unused_is_forgotten(
    pool: GrammarPool, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(pool_module, limit, 2)
    for source in ("a", "b", "a", "c", "a", "b"):
        ask(pool, source)
    assert backend.compiled == ["a", "b", "c", "b"]
