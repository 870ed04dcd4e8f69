"""What all tests share: how they are dealt to several processes, one torch thread in their own process, and no GPU.

Beside other processes two threads that spin are slower.
"""

import os
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read once, when torch is first imported
os.environ.setdefault("TRITON_INTERPRET", "1")  # read when kernels.triton is first imported: here they run on the CPU

FIRST = ("tests/e2e/", "tests/engine_core/test_same_tokens.py")
"""What takes longest: one process begins with each. The end-to-end tests share servers and meet no other of theirs."""


def group_of(nodeid: str) -> str:
    """What one process has as a whole: a file, or one of ``FIRST``."""
    return next((path for path in FIRST if nodeid.startswith(path)), nodeid.partition("::")[0])


class GroupScheduling(LoadScopeScheduling):
    """Each process takes a group when it is done with the one before."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    return GroupScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: group_of(item.nodeid) not in FIRST)
