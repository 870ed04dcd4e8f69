"""The tests of tests/kernels, on the device."""

from test_kernels_attention import *  # noqa: F403
