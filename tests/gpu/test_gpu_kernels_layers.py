"""The tests of tests/kernels, on the device."""

from test_kernels_layers import *  # noqa: F403
