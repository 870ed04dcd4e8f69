"""The tests of tests/kernels, on the device."""

from test_kernels_memory import *  # noqa: F403
