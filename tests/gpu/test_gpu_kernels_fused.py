"""The tests of tests/kernels, on the device."""

from test_kernels_fused import *  # noqa: F403
