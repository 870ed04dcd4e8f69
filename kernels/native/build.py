"""Compiling the native sources for this host, once: into the user's cache, or a temporary folder without one.

A source that names OCTAVO_ISA is compiled for every instruction set of the machine (for AMX only one that says
OCTAVO_DISPATCH_WITH_AMX, src/isa.h); which one runs is chosen when the library is loaded, so one file serves every host
of the same machine type and compiler.
"""

import atexit
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent / "src"
LIBRARY_NAME = "liboctavo.so"
COMPILERS = ("g++", "c++", "clang++")
COMPILE_TIMEOUT_S = 300
NUM_JOBS = 2

FLAGS = (
    *("-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno"),
    *("-fPIC", "-fvisibility=hidden", "-pthread", "-Wno-psabi", "-Wno-ignored-attributes"),
)
AVX2_FLAGS = ("-mavx2", "-mfma", "-mf16c")
AVX512_FLAGS = (*AVX2_FLAGS, *(f"-mavx512{part}" for part in ("f", "bw", "dq", "vl", "bf16", "vnni")))
AMX_FLAGS = ("-DOCTAVO_ISA_AVX512", *AVX512_FLAGS, "-mamx-tile", "-mamx-bf16", "-mamx-int8")
ISA_FLAGS: dict[str, tuple[str, ...]] = {"generic": ()}
if platform.machine() in ("x86_64", "AMD64"):
    ISA_FLAGS |= {"avx2": AVX2_FLAGS, "avx512": AVX512_FLAGS, "amx": AMX_FLAGS}

logger = logging.getLogger("kernels.native")


class NativeUnavailable(RuntimeError):
    """The native kernels cannot be built or loaded on this host; the message says why."""


def sources_digest() -> str:
    """SHA-256 (hex) over the names and contents of the sources: the version of the kernels' arithmetic."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        if path.suffix in (".cpp", ".h"):
            contents = path.read_bytes()
            digest.update(f"{path.name} {len(contents)}\n".encode() + contents)
    return digest.hexdigest()


def build() -> Path:
    """The library of these sources, compiled now unless the cache has it. Raises ``NativeUnavailable``."""
    compiler = find_compiler()
    try:
        folder = cache_folder() / "native" / build_digest(compiler)
        path = folder / LIBRARY_NAME
        if path.is_file():
            return path
        logger.info("compiling the native kernels for this host, once: about half a minute")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        work = tempfile.mkdtemp(prefix="build-", dir=folder)
    except OSError as error:
        work = tempfile.mkdtemp(prefix="octavo-native-")
        atexit.register(shutil.rmtree, work, ignore_errors=True)
        logger.warning("no cache for the native kernels, they are compiled at every start: %s", error)
        return compile_library(compiler, Path(work))
    try:
        # Others see the complete file or none; of two processes that compile at once the last one's stays.
        os.replace(compile_library(compiler, Path(work)), path)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return path


def find_compiler() -> str:
    """The path of a C++ compiler. Raises ``NativeUnavailable``."""
    for name in COMPILERS:
        if path := shutil.which(name):
            return path
    raise NativeUnavailable(f"there is no C++ compiler ({', '.join(COMPILERS)})")


def cache_folder() -> Path:
    """octavo's folder in the user's cache. Raises ``OSError`` if the user has no home folder."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path is invalid and to be ignored.
    if os.path.isabs(configured):
        return Path(configured) / "octavo"
    try:
        return Path.home() / ".cache" / "octavo"
    except RuntimeError as error:
        raise OSError(str(error)) from error


def build_digest(compiler: str) -> str:
    """What the library depends on, in hex digits: 12 of the sources; 20 of those, the flags, compiler and machine."""
    version = run_compiler([compiler, "--version"])
    machine = (sys.platform, platform.machine(), platform.libc_ver())
    sources = sources_digest()
    digest = hashlib.sha256(repr((sources, FLAGS, ISA_FLAGS, compiler, version, machine)).encode()).hexdigest()
    return f"{sources[:12]}-{digest[:20]}"


def compile_library(compiler: str, folder: Path) -> Path:
    """Compile and link everything in ``folder``. Raises ``NativeUnavailable`` with the compiler's message."""
    units = [(source, isa) for source in sorted(SOURCES.glob("*.cpp")) for isa in isas_of(source.read_text())]
    with ThreadPoolExecutor(NUM_JOBS) as executor:
        objects = list(executor.map(lambda unit: compile_unit(compiler, folder, *unit), units))
    # Of an inline function that several objects have the linker takes the first: it must be one that every host runs.
    objects.sort(key=lambda path: not path.name.endswith((".common.o", ".generic.o")))
    library = folder / LIBRARY_NAME
    run_compiler([compiler, "-shared", "-pthread", "-o", str(library), *map(str, objects)])
    return library


def isas_of(source: str) -> list[str | None]:
    """What a source is compiled for; None: once, for all."""
    if "OCTAVO_ISA" not in source:
        return [None]
    return [isa for isa in ISA_FLAGS if isa != "amx" or "OCTAVO_DISPATCH_WITH_AMX" in source]


def compile_unit(compiler: str, folder: Path, source: Path, isa: str | None) -> Path:
    """One object: of a source that is the same everywhere, or of one for an instruction set."""
    target = folder / f"{source.stem}.{isa or 'common'}.o"
    isa_flags = () if isa is None else (f"-DOCTAVO_ISA={isa}", f"-DOCTAVO_ISA_{isa.upper()}", *ISA_FLAGS[isa])
    run_compiler([compiler, *FLAGS, *isa_flags, "-c", str(source), "-o", str(target)])
    return target


def run_compiler(command: list[str]) -> str:
    """What it prints. Raises ``NativeUnavailable`` if it fails or hangs."""
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=COMPILE_TIMEOUT_S,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeUnavailable(f"the compiler does not run: {error}") from error
    if result.returncode != 0:
        lines = [line for line in result.stderr.splitlines() if "error" in line] or result.stderr.splitlines()
        raise NativeUnavailable(f"{command[0]} failed: {'; '.join(lines[:3]) or f'exit status {result.returncode}'}")
    return result.stdout
