"""The tests of tests/kernels, on the device."""

from test_kernels_linear import *  # noqa: F403
