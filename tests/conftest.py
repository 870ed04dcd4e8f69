"""One torch thread for whatever runs in the tests' own process: beside other processes two that spin are slower."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read once, when torch is first imported
