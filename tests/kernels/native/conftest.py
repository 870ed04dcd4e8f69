"""Without a C++ compiler there are no native kernels to test, and the reference runs in their place."""

from pathlib import Path

import pytest

from kernels.native.build import NativeUnavailable, find_compiler


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    try:
        find_compiler()
    except NativeUnavailable as error:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=str(error)))
