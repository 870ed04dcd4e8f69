"""Writes the dashboards: ``python -m observability.grafana.build``. Their source are the modules beside this one."""

import argparse
import json
from pathlib import Path

from observability.grafana.board import Dashboard
from observability.grafana.latency import LATENCY
from observability.grafana.overview import OVERVIEW
from observability.grafana.scheduler import SCHEDULER
from observability.grafana.tenants import TENANTS

FOLDER = Path(__file__).parent / "dashboards"
DASHBOARDS: tuple[Dashboard, ...] = (OVERVIEW, LATENCY, SCHEDULER, TENANTS)


def texts(prefix: str = "octavo") -> dict[str, str]:
    """What each file says, by its name."""
    return {
        f"{dashboard.uid}.json": json.dumps(dashboard.as_json(prefix), indent=2, ensure_ascii=False) + "\n"
        for dashboard in DASHBOARDS
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser("observability.grafana.build", description="Writes the dashboards of octavo.")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where to; default: where they are kept")
    parser.add_argument("--prefix", default="octavo", help="the server's --metrics-prefix")
    arguments = parser.parse_args()
    for name, text in texts(arguments.prefix).items():
        (arguments.folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
