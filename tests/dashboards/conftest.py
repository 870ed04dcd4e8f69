"""The server, its load and the Prometheus that watched: once for all tests that ask it."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dashboards_watched import Watched

FOLDER = Path(__file__).parent
sys.path[1:1] = [str(FOLDER), str(FOLDER.parent / "e2e")]  # from where modules below come


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test that needs the servers waits for all that happens to them."""
    for item in items:
        if FOLDER in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def watched(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Watched]":
    from dashboards_prometheus import MISSING, is_there
    from dashboards_watched import watch

    if not is_there():
        pytest.skip(MISSING)
    with watch(tmp_path_factory.mktemp("watched")) as found:
        yield found
