"""Arrays on their way to a device: what arrives is what was put, whenever the copies happen."""

from collections.abc import Callable

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from late_device import LateDevice
from torch import Tensor

from engine_core.device.staging import NUM_BUFFERS, SMALLEST_CHUNK, DirectStage

SHAPES = st.lists(
    st.tuples(
        st.sampled_from(["i4", "i8", "f4", "u1"]), st.sampled_from([(0,), (1,), (7,), (3, 5), (SMALLEST_CHUNK // 3,)])
    ),
    max_size=6,
)


def make_array(seed: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 100, shape).astype(dtype)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(steps=st.lists(SHAPES, min_size=1, max_size=3 * NUM_BUFFERS))
def test_steps_find_their_arrays_however_late_they_run(steps: list[list[tuple[str, tuple[int, ...]]]]) -> None:
    """The host goes on to the next step and reuses its arrays; the device copies and reads when it must."""
    device, found = LateDevice(), []

    def read(send: Callable[[], None], tensors: list[Tensor]) -> Callable[[], None]:
        def run() -> None:
            send()
            found.append([tensor.clone() for tensor in tensors])

        return run

    for number, arrays in enumerate(steps):
        stage, tensors = device.stage(), []
        for index, (dtype, shape) in enumerate(arrays):
            array = make_array(100 * number + index, dtype, shape)
            tensors.append(stage.put(array))
            array[...] = 99  # put copies
        device.launch(read(stage.send, tensors))
    device.run_all()
    assert len(found) == len(steps)
    for number, (arrays, tensors) in enumerate(zip(steps, found, strict=True)):
        for index, ((dtype, shape), tensor) in enumerate(zip(arrays, tensors, strict=True)):
            expected = torch.from_numpy(make_array(100 * number + index, dtype, shape))
            assert tensor.dtype == expected.dtype
            assert torch.equal(tensor, expected)


def test_a_buffer_is_written_again_only_when_it_was_copied() -> None:
    device = LateDevice()
    stages = [device.stage() for _ in range(NUM_BUFFERS)]
    first = stages[0].put(np.array([1, 2, 3]))
    device.launch(stages[0].send)
    assert device.queue
    device.stage()
    assert not device.queue, "the buffer's last copy was not waited for"
    assert first.tolist() == [1, 2, 3]


def test_tensors_do_not_overlap_and_are_aligned() -> None:
    stage = LateDevice().stage()
    tensors = [stage.put(np.zeros(size, np.int64)) for size in (1, 33, 5)]
    spans = sorted((tensor.data_ptr(), tensor.data_ptr() + 8 * len(tensor)) for tensor in tensors)
    assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))
    assert all((start - spans[0][0]) % 16 == 0 for start, _ in spans), "kernels load sixteen bytes at a time"


def test_the_host_s_own_memory_is_read_where_it_lies() -> None:
    array = np.arange(4)
    assert DirectStage().put(array).data_ptr() == array.ctypes.data
