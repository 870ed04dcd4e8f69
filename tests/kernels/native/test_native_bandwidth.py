"""Every loop reads every byte once, whatever is left over at its end."""

import pytest
import torch
from native_libraries import library_of

from kernels.native.bandwidth import LOOPS, VECTOR_BYTES, read_memory
from kernels.native.library import VECTOR_ISAS


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("loop", range(len(LOOPS)), ids=LOOPS)
def test_the_sum_is_that_of_all_words(isa: str, loop: int) -> None:
    part = 2**18  # bytes of one task
    for num_vectors in (0, 1, 4, 5, part // VECTOR_BYTES, 2 * part // VECTOR_BYTES + 7):
        data = torch.randint(-(2**31), 2**31, (num_vectors * 16,), dtype=torch.int32)
        assert read_memory(library_of(isa), data, loop) == int(data.sum(dtype=torch.int64)) % 2**32


def test_what_cannot_be_read_is_refused() -> None:
    library = library_of()
    for data in (torch.zeros(15, dtype=torch.int32), torch.zeros(32, 2, dtype=torch.int32)[:, 0]):
        with pytest.raises(ValueError, match="whole vectors"):
            read_memory(library, data, 0)
    with pytest.raises(ValueError, match=f"loop {len(LOOPS)}"):
        read_memory(library, torch.zeros(16, dtype=torch.int32), len(LOOPS))
