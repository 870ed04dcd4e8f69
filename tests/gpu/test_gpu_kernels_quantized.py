"""The tests of tests/kernels, on the device."""

from test_kernels_quantized import *  # noqa: F403
