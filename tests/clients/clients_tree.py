"""Where things are: the repository, and the Python of the main environment, which has torch and octavo."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
MAIN_PYTHON = ROOT / ".venv" / "bin" / "python"
