"""The CPU as a device: the memory that it gives."""

import sys

import pytest
import torch

from engine_core.device.cpu import LARGE_PAGE, CpuDevice


@pytest.mark.parametrize("num_bytes", [48, LARGE_PAGE - 1, 3 * LARGE_PAGE + 100])
def test_memory_can_be_written_and_stays(num_bytes: int) -> None:
    tensor = CpuDevice(overlap=False).empty((2, num_bytes))
    assert tensor.dtype == torch.uint8
    assert tensor.shape == (2, num_bytes)
    assert tensor.data_ptr() % 64 == 0
    first, second = tensor.unbind()
    del tensor
    first.fill_(7)
    second.fill_(9)
    assert int(first.max()) == int(first.min()) == 7
    assert int(second.max()) == int(second.min()) == 9


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_large_memory_asks_for_large_pages() -> None:
    address = CpuDevice(overlap=False).empty((2 * LARGE_PAGE,))
    with open("/proc/self/smaps") as file:
        flags = find_flags(file.read().splitlines(), address.data_ptr())
    assert "hg" in flags


def find_flags(lines: list[str], address: int) -> list[str]:
    """VmFlags of the mapping that holds ``address``."""
    is_inside = False
    for line in lines:
        name, _, rest = line.partition(" ")
        if "-" in name and not name.endswith(":"):
            first, last = (int(part, 16) for part in name.split("-"))
            is_inside = first <= address < last
        elif is_inside and name == "VmFlags:":
            return rest.split()
    raise AssertionError(f"no mapping holds {address:x}")
