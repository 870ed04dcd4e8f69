"""Facts about this machine and this source tree, read where Linux and the tools say them, for the head of a report.

What cannot be found is said to be unknown: a report must be possible anywhere. Must not import torch.
"""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNKNOWN = "unknown"
FLAGS_THAT_MATTER = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni", "amx_bf16", "amx_int8")
COMPILERS = ("g++", "c++", "clang++")  # in the order in which the kernels' build looks for one


def machine_facts() -> dict[str, str]:
    """Name to value, in the order of a report."""
    cpu = parse_cpuinfo(read("/proc/cpuinfo"))
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "CPU": cpu["model name"],
        "cores": f"{len(os.sched_getaffinity(0))} allowed of {os.cpu_count()}",
        "instruction sets": cpu["flags"],
        "caches": ", ".join(f"{name} {size}" for name, size in caches().items()) or UNKNOWN,
        "memory": memory(read("/proc/meminfo")),
        "kernel": platform.release(),
        "compiler": next((text for name in COMPILERS if (text := first_line([name, "--version"]))), UNKNOWN),
        "Python": platform.python_version(),
        "torch": version("torch"),
    }


def parse_cpuinfo(text: str) -> dict[str, str]:
    """``model name``, and of ``flags`` those that decide which kernels run, of the first processor."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, separator, value = line.partition(":")
        if separator:
            fields.setdefault(name.strip(), value.strip())
    found = set(fields.get("flags", "").split())
    return {
        "model name": fields.get("model name", platform.machine() or UNKNOWN),
        "flags": " ".join(flag for flag in FLAGS_THAT_MATTER if flag in found) or "none of those that matter",
    }


def memory(meminfo: str) -> str:
    """MemTotal, in GiB."""
    sizes = [line.split()[1] for line in meminfo.splitlines() if line.startswith("MemTotal:")]
    return f"{int(sizes[0]) / 2**20:.1f} GiB" if sizes else UNKNOWN


def caches() -> dict[str, str]:
    """``L2`` and the like to a size, of the first processor's data caches."""
    found = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        if read(str(folder / "type")).strip() != "Instruction":
            found[f"L{read(str(folder / 'level')).strip()}"] = read(str(folder / "size")).strip()
    return found


def last_cache_bytes() -> int:
    """Size of the largest cache, 32 MiB where nobody says it."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    sizes = [int(size[:-1]) * units[size[-1]] for size in caches().values() if size[-1:] in units]
    return max(sizes, default=32 * 2**20)


def commit() -> str:
    """Of the checkout, and whether files have changed since."""
    name = first_line(["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"])
    if not name:
        return UNKNOWN
    return f"{name} with changes" if first_line(["git", "-C", str(ROOT), "status", "--porcelain", "-uno"]) else name


def read(path: str) -> str:
    """A file's text, empty where there is none."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def first_line(command: list[str]) -> str:
    """What a tool prints first; empty where it is missing or fails."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return next(iter(result.stdout.splitlines()), "") if result.returncode == 0 else ""
