"""The compiled kernels, loaded: calls by name without the GIL, the instruction set, and the number of threads.

It knows names and argument structures only; what they mean is the business of the modules beside it.
"""

import ctypes
import os
import shutil
import tempfile
from pathlib import Path
from threading import Lock

from kernels.native.build import NativeUnavailable, build, sources_digest

ISAS = ("amx", "avx512", "avx2", "generic")
VECTOR_ISAS = ISAS[1:]
"""Without amx, in which only the linear layers differ from avx512."""


class Library:
    """One set of kernels and threads. Calls from several threads take turns."""

    def __init__(self, handle: ctypes.CDLL) -> None:
        self.version = sources_digest()[:12]
        """Of the arithmetic: changes with the sources. Part of the numerics id beside ``isa``."""
        self._handle = handle
        self._lock = Lock()
        self._functions: dict[str, ctypes._NamedFuncPointer] = {}
        handle.octavo_select.argtypes = (ctypes.c_char_p,)
        handle.octavo_isa.restype = ctypes.c_char_p
        handle.octavo_set_num_threads.argtypes = (ctypes.c_int64,)
        handle.octavo_set_num_threads.restype = None
        for name in ("octavo_select", "octavo_num_threads"):
            getattr(handle, name).restype = ctypes.c_int64
        self._run = handle.octavo_run
        self._run.argtypes, self._run.restype = (ctypes.c_void_p, ctypes.c_void_p), None

    @classmethod
    def load(cls, isa: str | None = None, threads: int | None = None) -> "Library":
        """Compile if need be and load. ``isa``: one of ``ISAS``, or the best of this host. ``threads``: all that
        affinity and the cgroup allow by default.

        Libraries of the host's best instruction set share their threads; a forced one has its own. Raises
        ``NativeUnavailable``; ``ValueError`` for an unknown instruction set or one that this host lacks.
        """
        if isa is not None and isa not in ISAS:
            raise ValueError(f"unknown instruction set {isa!r}: it is one of {', '.join(ISAS)}")
        path = build()
        library = cls(open_library(path) if isa is None else open_copy(path))
        if isa is not None and not library._handle.octavo_select(isa.encode()):
            raise ValueError(f"this host cannot run {isa} kernels")
        library.set_num_threads(num_allowed_cores() if threads is None else threads)
        return library

    @property
    def isa(self) -> str:
        """The code path in use, one of ``ISAS``."""
        name: bytes = self._handle.octavo_isa()
        return name.decode()

    @property
    def num_threads(self) -> int:
        """Threads that compute, the caller's included."""
        return int(self._handle.octavo_num_threads())

    def set_num_threads(self, count: int) -> None:
        """At least one. The result of no kernel depends on it."""
        if count < 1:
            raise ValueError(f"the number of threads is at least 1, not {count}")
        with self._lock:
            self._handle.octavo_set_num_threads(count)

    def call(self, name: str, args: ctypes.Structure) -> None:
        """``name(&args)``, for example ``octavo_linear``. What ``args`` points to must be alive."""
        function = self._functions.get(name) or self._function(name)
        with self._lock:
            function(ctypes.byref(args))

    def run(self, program: object, values: object) -> None:
        """``octavo_run``: a recorded program (program.py), given as ctypes passes a pointer to it and its counts."""
        with self._lock:
            self._run(program, values)

    def address(self, name: str) -> int:
        """Where the function ``name`` is. Raises ``AttributeError`` for an unknown one."""
        return ctypes.cast(self._function(name), ctypes.c_void_p).value or 0

    def _function(self, name: str) -> "ctypes._NamedFuncPointer":
        function: ctypes._NamedFuncPointer = getattr(self._handle, name)
        function.argtypes, function.restype = (ctypes.c_void_p,), None
        self._functions[name] = function
        return function


def open_library(path: Path) -> ctypes.CDLL:
    """Raises ``NativeUnavailable`` where the file cannot be loaded."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeUnavailable(f"the library cannot be loaded: {error}") from error


def open_copy(path: Path) -> ctypes.CDLL:
    """A second instance with its own state: the loader takes the same file for the same library."""
    with tempfile.TemporaryDirectory(prefix="octavo-native-") as folder:
        return open_library(Path(shutil.copy(path, folder)))


def num_allowed_cores() -> int:
    """Cores that affinity and the cgroup's quota allow, at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores  # no cgroup v2 here: affinity alone decides
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))
