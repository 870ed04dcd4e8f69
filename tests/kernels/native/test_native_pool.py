"""The thread pool: every task once, exact results at a high rate of calls, quiet when idle, safe over fork and exit."""

import ctypes
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from native_libraries import allocate, library_of, run
from torch import Tensor

from kernels.native import linear
from kernels.native.library import Library, num_allowed_cores

TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int)


@pytest.fixture
def library() -> Iterator[Library]:
    library = library_of("generic")
    yield library
    library.set_num_threads(1)


def integers(library: Library) -> tuple[Tensor, linear.NativeLinear, Tensor]:
    """Operands whose product is exact in float32 in any order, and the product."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-8, 9, (3, 24), generator=generator).float()
    weight = torch.randint(-8, 9, (200, 24), generator=generator).float()
    return x, linear.pack_linear(library, weight), x @ weight.t()


def multiply(library: Library, x: Tensor, weight: linear.NativeLinear) -> Tensor:
    return run(library, "octavo_linear", linear.prepare_linear(x, weight, None, None, allocate))


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_every_task_runs_once(library: Library, threads: int) -> None:
    library.set_num_threads(threads)
    run_tasks = library._handle.octavo_run_tasks
    run_tasks.argtypes, run_tasks.restype = (ctypes.c_int64, TASK, ctypes.c_void_p), None
    seen: Counter[int] = Counter()
    numbers: set[int] = set()

    def body(context: int | None, task: int, thread: int) -> None:
        assert context == 5
        seen[task] += 1
        numbers.add(thread)

    for num_tasks in (0, 1, 2, 3, 17, 200):
        seen.clear()
        run_tasks(num_tasks, TASK(body), 5)
        assert seen == Counter(range(num_tasks))
    assert numbers <= set(range(threads))


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_many_small_calls_are_exact(library: Library, threads: int) -> None:
    library.set_num_threads(threads)
    x, weight, expected = integers(library)
    out, args = linear.prepare_linear(x, weight, None, None, allocate)
    for _ in range(2000):
        out.fill_(float("nan"))
        library.call("octavo_linear", args)
        assert torch.equal(out, expected)


def test_callers_on_several_threads_take_turns(library: Library) -> None:
    library.set_num_threads(2)
    x, weight, expected = integers(library)
    with ThreadPoolExecutor(4) as executor:
        results = list(executor.map(lambda _: multiply(library, x, weight), range(400)))
    assert all(torch.equal(result, expected) for result in results)


def test_the_number_of_threads_can_change_between_calls(library: Library) -> None:
    x, weight, expected = integers(library)
    for threads in (4, 2, 1, 3, 2, 4):
        library.set_num_threads(threads)
        assert library.num_threads == threads
        assert torch.equal(multiply(library, x, weight), expected)
    with pytest.raises(ValueError, match="at least 1"):
        library.set_num_threads(0)


def test_idle_threads_use_no_cpu(library: Library) -> None:
    library.set_num_threads(4)
    x, weight, expected = integers(library)
    assert torch.equal(multiply(library, x, weight), expected)
    before = time.process_time()
    time.sleep(0.25)  # what is measured: three threads that spun on would use at least as much again
    assert time.process_time() - before < 0.05


def test_denormals_are_kept_in_every_thread(library: Library) -> None:
    """Also when the calling thread flushes them, which is its own business before and after."""
    library.set_num_threads(2)
    weight = linear.pack_linear(library, torch.full((20_000, 1), 1e-40))
    x = torch.ones(1, 1)
    torch.set_flush_denormal(True)
    try:
        results = [multiply(library, x, weight) for _ in range(5)]
        still_flushes = bool((torch.full((64,), 1e-40) * x[0] == 0).all())
    finally:
        torch.set_flush_denormal(False)
    tiny = torch.full((1, 20_000), 1e-40)
    assert all(torch.equal(result, tiny) for result in results)
    assert still_flushes


FORK_AND_EXIT = """
import os, torch
from kernels.native import linear
from kernels.native.library import Library

library = Library.load(threads=3)
x, weight = torch.ones(2, 24), linear.pack_linear(library, torch.ones(200, 24))

def check():
    out, args = linear.prepare_linear(x, weight, None, None, lambda shape, dtype: torch.zeros(shape, dtype=dtype))
    library.call("octavo_linear", args)
    assert (out == 24).all()

check()
child = os.fork()
check()
if child == 0:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
check()
"""


def test_a_forked_child_has_a_pool_and_exit_does_not_wait(library: Library) -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORK_AND_EXIT], check=True, timeout=60)


def test_default_number_of_threads_is_what_this_process_may_use() -> None:
    assert Library.load("generic").num_threads == num_allowed_cores()
