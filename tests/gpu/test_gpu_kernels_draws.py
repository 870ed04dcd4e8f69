"""The tests of tests/kernels, on the device."""

from test_kernels_draws import *  # noqa: F403
