"""The tests of tests/kernels, on the device."""

from test_kernels_sampling import *  # noqa: F403
