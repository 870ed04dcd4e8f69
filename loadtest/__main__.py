"""``python -m loadtest [FLAGS] [USERS]``: locust with the settings of ``loadtest/locust.conf``, which flags change.

A process of locust from its start: nobody imports this.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def main(arguments: list[str]) -> None:
    """Becomes locust."""
    if find_spec("locust") is None:
        sys.exit("loadtest: there is no locust; pip install locust, or make venv in octavo's folder")
    if "--help" in arguments or "-h" in arguments:
        _help()
        return
    from locust.main import main as run

    sys.argv = ["locust", "--config", str(FOLDER / "locust.conf"), "-f", str(FOLDER / "locustfile.py"), *arguments]
    run()


def _help() -> None:
    """Locust prints its own before it reads the locustfile: without the flags of that."""
    from locust.argument_parser import get_parser

    from loadtest import locustfile

    assert locustfile.__doc__
    get_parser(default_config_files=[]).print_help()


if __name__ == "__main__":
    main(sys.argv[1:])
