"""What octavo does on this machine, in figures: kernels, engine, host work, server. Development code, not installed."""

import os

# Read once, when torch is first imported; the engine sets it, too: its threads must not spin beside the kernels' own.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
