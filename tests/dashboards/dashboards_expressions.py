"""Every PromQL expression that is shipped, as Prometheus would be asked it: variables and intervals filled in."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from observability.instruments import Kind
from observability.metrics import INSTRUMENTS

ROOT = Path(__file__).parents[2] / "observability"
PROMETHEUS = ROOT / "prometheus"
WINDOW = "10m"  # all that a test did
JOB = "octavo"  # as in prometheus.yaml
RULES = ("recording.yaml", "alerts.yaml")


@dataclass(frozen=True, slots=True)
class Expression:
    """``place`` says where it stands; ``legend`` names labels in double braces."""

    place: str
    promql: str
    legend: str = ""


def dashboards() -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((ROOT / "grafana" / "dashboards").glob("*.json"))]


def shipped_yaml(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def fill(promql: str, variables: dict[str, str]) -> str:
    """As Grafana does it: ``$name`` and ``${name}``."""
    filled = re.sub(
        r"\$(?:\{(\w+)\}|(\w+))", lambda match: variables[match.group(1) or match.group(2)], promql, flags=re.ASCII
    )
    assert "$" not in filled
    return filled


def variables_of(dashboard: dict[str, Any]) -> dict[str, str]:
    """What they are when nobody has chosen, and there is no other job."""
    values = {"__rate_interval": WINDOW, "__range": WINDOW}
    for variable in dashboard["templating"]["list"]:
        value = variable["current"]["value"]
        values[variable["name"]] = (variable["allValue"] or JOB) if value == ["$__all"] else value
    return values


def panel_expressions(**chosen: str) -> Iterator[Expression]:
    """Of every panel, annotation and variable; with ``chosen`` values of variables."""
    for dashboard in dashboards():
        variables = variables_of(dashboard) | chosen
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                place = f"{dashboard['uid']}: {panel['title']}, {target['refId']}"
                yield Expression(place, fill(target["expr"], variables), target["legendFormat"])
        for annotation in dashboard["annotations"]["list"]:
            place = f"{dashboard['uid']}: {annotation['name']}"
            yield Expression(place, as_data(fill(annotation["expr"], variables)))
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"]).groups()  # type: ignore[union-attr]
                place = f"{dashboard['uid']}: variable {variable['name']}"
                yield Expression(place, f"count by ({label}) ({fill(selector, variables)})")


def rules() -> list[dict[str, Any]]:
    groups = [group for name in RULES for group in shipped_yaml(f"prometheus/{name}")["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def rule_expressions() -> Iterator[Expression]:
    """Of alerts with 0 and 1 for false and true, so that one that does not fire has data, too."""
    for rule in rules():
        name = rule.get("record") or rule["alert"]
        yield Expression(f"rule {name}", as_data(rule["expr"]) if "alert" in rule else rule["expr"])


def as_data(promql: str) -> str:
    """Comparisons say 0 or 1 instead of dropping what they do not hold for. Those within braces are no comparisons."""
    parts = re.split(r"(\{[^}]*\})", promql)
    return "".join(
        part if part.startswith("{") else re.sub(r"(>=|<=|==|!=|>|<)(?!\s*bool)", r"\1 bool", part) for part in parts
    )


def link_expressions(tags: str) -> Iterator[Expression]:
    """From spans to metrics: of the data source for traces."""
    (tempo,) = (
        each
        for each in shipped_yaml("grafana/provisioning/datasources/octavo.yaml")["datasources"]
        if each["type"] == "tempo"
    )
    for query in tempo["jsonData"]["tracesToMetrics"]["queries"]:
        yield Expression(f"link {query['name']}", query["query"].replace("$$__tags", tags))


NAMES = re.compile(r"\b(?:octavo:\w+|http_\w+|process_\w+|job_model:\w+:\w+|up|ALERTS)\b")


def metrics_of(promql: str) -> set[str]:
    """The metrics that an expression asks for; those of a histogram by its own name."""
    histograms = [exported_name(each.name) for each in INSTRUMENTS if each.kind is Kind.HISTOGRAM]
    bare = re.sub(r'"[^"]*"', "", promql)
    series = {f"{name}_{part}": name for name in histograms for part in ("bucket", "sum", "count")}
    return {series.get(name, name) for name in NAMES.findall(bare)}


def exported_name(name: str) -> str:
    (instrument,) = (each for each in INSTRUMENTS if each.name == name)
    return f"octavo:{name}" if instrument.is_prefixed else name
