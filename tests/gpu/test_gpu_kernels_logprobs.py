"""The tests of tests/kernels, on the device."""

from test_kernels_logprobs import *  # noqa: F403
