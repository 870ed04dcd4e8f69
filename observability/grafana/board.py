"""What a dashboard is made of, and its JSON as Grafana 12 reads it.

Expressions are PromQL with short forms: ``octavo:`` is the prefix of our names, ``$s`` the matchers of what was chosen
(job, server, model; ``$h`` leaves out the model, ``$m`` the server), ``$i`` Grafana's interval for a rate.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
Thresholds = tuple[tuple[float, str], ...]

WIDTH = 24
SCHEMA_VERSION = 41
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
PROMETHEUS_UID = "octavo-prometheus"  # as in provisioning/datasources
SERVER = 'job=~"$job", instance=~"$instance"'
MODEL = SERVER + ', model_name=~"$model_name"'
ANY_SERVER = 'job=~"$job", model_name=~"$model_name"'

REQUESTS, TOKENS, BLOCKS = "reqps", "suffix: tok/s", "suffix: blocks"
SECONDS, BYTES, SHARE, COUNT, CORES = "s", "bytes", "percentunit", "short", "suffix: cores"


def promql(text: str) -> str:
    """The expression, its short forms written out."""
    text = text.replace("octavo:", "${prefix}:").replace("[$i]", "[$__rate_interval]")
    return text.replace("{$s", "{" + MODEL).replace("{$h", "{" + SERVER).replace("{$m", "{" + ANY_SERVER)


@dataclass(frozen=True, slots=True)
class Query:
    """One expression, and how its series are called. ``is_table``: the values now, a row for each series."""

    expr: str
    legend: str
    is_table: bool = False

    def as_json(self, ref: str, *, is_heatmap: bool) -> Json:
        """A panel's target."""
        found: Json = {"refId": ref, "expr": promql(self.expr), "legendFormat": self.legend}
        if self.is_table:
            return found | {"format": "table", "instant": True, "range": False}
        return found | {"format": "heatmap" if is_heatmap else "time_series", "range": True}


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture. ``base`` is the colour below the first of ``thresholds``; ``note`` says what it means, and when it
    has nothing to show. ``lines`` draws the thresholds into the picture."""

    title: str
    queries: tuple[Query, ...]
    unit: str = COUNT
    note: str = ""
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    is_stacked: bool = False
    most: float | None = None
    decimals: int | None = None
    thresholds: Thresholds = ()
    base: str = "green"
    lines: bool = False
    overrides: tuple[Json, ...] = ()
    transformations: tuple[Json, ...] = ()

    def as_json(self, number: int, x: int, y: int) -> Json:
        """The panel at its place."""
        targets = [
            query.as_json(chr(ord("A") + index), is_heatmap=self.kind == "heatmap")
            for index, query in enumerate(self.queries)
        ]
        found: Json = {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.note,
            "datasource": DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "targets": targets,
            "fieldConfig": {"defaults": self._defaults(), "overrides": list(self.overrides)},
            "options": _OPTIONS[self.kind],
        }
        if self.kind == "heatmap":
            found["options"] = {**found["options"], "yAxis": {"unit": self.unit, "axisPlacement": "left"}}
        if self.transformations:
            found["transformations"] = list(self.transformations)
        return found

    def _defaults(self) -> Json:
        steps: list[Json] = [{"value": None, "color": self.base if self.thresholds else "text"}]
        steps += [{"value": value, "color": color} for value, color in self.thresholds]
        found: Json = {"unit": self.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}}
        if self.most is not None:
            found["max"] = self.most
        if self.decimals is not None:
            found["decimals"] = self.decimals
        if self.kind == "timeseries":
            found["color"] = {"mode": "palette-classic"}
            found["custom"] = {
                "lineWidth": 1,
                "fillOpacity": 40 if self.is_stacked else 8,
                "showPoints": "never",
                "spanNulls": False,
                "stacking": {"mode": "normal" if self.is_stacked else "none"},
                "thresholdsStyle": {"mode": "dashed" if self.lines else "off"},
            }
        elif self.kind == "stat":
            found["color"] = {"mode": "thresholds"}
        return found


_VALUE_NOW: Json = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: dict[str, Json] = {
    "timeseries": {
        "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["mean", "max", "lastNotNull"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {"reduceOptions": _VALUE_NOW, "colorMode": "value", "graphMode": "area", "textMode": "value"},
    "bargauge": {"reduceOptions": _VALUE_NOW, "displayMode": "basic", "orientation": "horizontal"},
    "heatmap": {
        "calculate": False,
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
        "cellGap": 1,
        "filterValues": {"le": 1e-9},
        "tooltip": {"mode": "single", "yHistogram": True},
    },
    "table": {"showHeader": True, "cellHeight": "sm"},
}


def stat(title: str, expr: str, unit: str = COUNT, *, note: str = "", width: int = 3, **more: Any) -> Panel:
    """One number."""
    return Panel(title, (Query(expr, ""),), unit, note, "stat", width, 4, **more)


def graph(title: str, unit: str, *queries: Query, **more: Any) -> Panel:
    """Lines over time, unless ``kind`` says otherwise."""
    return Panel(title, queries, unit, **more)


def quantiles(histogram: str, matchers: str = "$s", shares: tuple[float, ...] = (0.5, 0.95, 0.99)) -> tuple[Query, ...]:
    """Quantiles of an ``octavo:`` histogram, and its mean."""
    return (
        *(Query(quantile(share, histogram, matchers), f"p{share * 100:.0f}") for share in shares),
        Query(mean(histogram, matchers), "mean"),
    )


def quantile(share: float, histogram: str, matchers: str = "$s", by: str = "") -> str:
    """One quantile of what a histogram saw, for each value of the label ``by``."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (rate({histogram}_bucket{{{matchers}}}[$i])))"


def mean(histogram: str, matchers: str = "$s") -> str:
    """The mean of what a histogram saw."""
    selector = "{" + matchers + "}[$i]"
    return f"sum(rate({histogram}_sum{selector})) / sum(rate({histogram}_count{selector}))"


def heatmap(title: str, histogram: str, unit: str, note: str = "", width: int = 8) -> Panel:
    """How many fell into each bucket."""
    query = Query(f"sum by (le) (increase({histogram}_bucket{{$s}}[$i]))", "{{le}}")
    return Panel(title, (query,), unit, note, "heatmap", width)


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading, from left to right and then below."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """What the reader of a dashboard may choose among: values of a label. All of them are ``everything``, which
    matches more than there is to choose, unless it is None."""

    name: str
    label: str
    query: str
    everything: str | None = ".*"

    def as_json(self) -> Json:
        """All values, unless some are chosen."""
        query = promql(self.query)
        return {
            "type": "query",
            "name": self.name,
            "label": self.label,
            "datasource": DATASOURCE,
            "query": {"query": query, "refId": self.name},
            "definition": query,
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": self.everything,
            "current": {"text": ["All"], "value": ["$__all"]},
        }


FIRST_TOKEN_SLOS = ("0.1", "0.25", "0.5", "1.0", "2.5", "5.0", "10.0")
PER_TOKEN_SLOS = ("0.01", "0.025", "0.05", "0.1", "0.2", "0.5", "1.0")
"""Seconds, each a bound of its histogram's buckets and written as ``le`` has it."""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """``uid`` stands in links and in addresses: it stays as it is."""

    uid: str
    title: str
    note: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...] = ()

    def as_json(self, prefix: str) -> Json:
        """The dashboard as Grafana imports it, for a server with that --metrics-prefix."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.note,
            "tags": ["octavo"],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "30s",
            "timezone": "browser",
            "time": {"from": "now-1h", "to": "now"},
            "links": [_LINKS],
            "annotations": {"list": [_RESTARTS]},
            "templating": {"list": [*_fixed_variables(prefix), *(variable.as_json() for variable in self.variables)]},
            "panels": list(self._panels()),
        }

    def _panels(self) -> Iterator[Json]:
        number, y = 1, 0
        for row in self.rows:
            place = {"x": 0, "y": y, "w": WIDTH, "h": 1}
            yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": place, "panels": []}
            number, x, y, height = number + 1, 0, y + 1, 0
            for panel in row.panels:
                if x + panel.width > WIDTH:
                    x, y, height = 0, y + height, 0
                yield panel.as_json(number, x, y)
                number, x, height = number + 1, x + panel.width, max(height, panel.height)
            y += height


_LINKS: Json = {
    "type": "dashboards",
    "title": "octavo",
    "tags": ["octavo"],
    "asDropdown": False,
    "includeVars": True,
    "keepTime": True,
    "targetBlank": False,
}
_RESTARTS: Json = {
    "name": "Engine restarts",
    "datasource": DATASOURCE,
    "enable": True,
    "iconColor": "red",
    "expr": promql("increase(octavo:engine_restarts_total{$s}[$i]) > 0"),
    "titleFormat": "engine restarted",
    "textFormat": "{{instance}} {{model_name}}",
}


def _fixed_variables(prefix: str) -> Iterator[Json]:
    """Those of every dashboard."""
    yield {
        "type": "datasource",
        "name": "datasource",
        "label": "Prometheus",
        "query": "prometheus",
        "current": {"text": "Prometheus", "value": PROMETHEUS_UID},
    }
    yield {
        "type": "constant",
        "name": "prefix",
        "label": "Prefix of the metrics (--metrics-prefix)",
        "query": prefix,
        "hide": 2,
        "current": {"text": prefix, "value": prefix},
    }
    # Other jobs of the same Prometheus are none of ours.
    yield Variable("job", "Job", "label_values(octavo:num_requests_running, job)", everything=None).as_json()
    yield Variable("instance", "Server", 'label_values(up{job=~"$job"}, instance)').as_json()
    yield Variable("model_name", "Model", "label_values(octavo:num_requests_running{$h}, model_name)").as_json()
    for name, label, values, value in (
        ("ttft_slo", "TTFT objective (s)", FIRST_TOKEN_SLOS, "1.0"),
        ("tpot_slo", "TPOT objective (s)", PER_TOKEN_SLOS, "0.1"),
    ):
        options = [{"text": each, "value": each, "selected": each == value} for each in values]
        yield {
            "type": "custom",
            "name": name,
            "label": label,
            "query": ",".join(values),
            "options": options,
            "current": {"text": value, "value": value},
        }
