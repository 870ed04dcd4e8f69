"""A child process ends with the one that started it, however that one ends: by its standard input, which the parent
holds open, and on Linux by a signal.
"""

import ctypes
import os
import signal
import sys
import threading
from typing import BinaryIO

PR_SET_PDEATHSIG = 1


def die_with_parent(pipe: BinaryIO) -> None:
    """Linux kills us when the thread that started us ends; elsewhere ``watch_parent`` alone has to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if pipe.closed:
        raise SystemExit("octavo: a child process was started without a death pipe")


def watch_parent(pipe: BinaryIO) -> None:
    """A thread that ends this process when the parent's end of ``pipe`` is gone, whatever is going on."""
    threading.Thread(target=_until_gone, args=(pipe,), name="death-pipe", daemon=True).start()


def _until_gone(pipe: BinaryIO) -> None:
    # Not ``pipe.read``: its lock, held for good, would be in the way of an interpreter that ends by itself.
    while os.read(pipe.fileno(), 4096):
        pass
    os._exit(0)
