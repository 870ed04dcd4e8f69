"""What is shipped fits together: dashboards, rules, configurations, and the table of instruments."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from dashboards_expressions import (
    PROMETHEUS,
    ROOT,
    RULES,
    dashboards,
    exported_name,
    link_expressions,
    metrics_of,
    panel_expressions,
    rule_expressions,
    rules,
    shipped_yaml,
)
from dashboards_prometheus import MISSING, is_there, promtool
from prometheus_client.utils import floatToGoString

from observability.grafana.board import FIRST_TOKEN_SLOS, PER_TOKEN_SLOS, PROMETHEUS_UID
from observability.grafana.build import FOLDER, texts
from observability.instruments import FIRST_TOKEN_BUCKETS, INTER_TOKEN_BUCKETS
from observability.metrics import INSTRUMENTS

OTHERS = {"up", "ALERTS", "process_open_fds"}  # Prometheus' own, and prometheus_client's
UNUSED: dict[str, str] = {}  # instruments that no dashboard shows, and why
WIDTH = 24

needs_promtool = pytest.mark.skipif(not is_there(), reason=MISSING)


def panels() -> list[dict[str, Any]]:
    return [panel for dashboard in dashboards() for panel in dashboard["panels"] if panel["type"] != "row"]


# ---- dashboards


def test_the_dashboards_are_those_of_their_source() -> None:
    """Otherwise: ``python -m observability.grafana.build``."""
    assert {path.name: path.read_text() for path in FOLDER.iterdir()} == texts()
    changed = {name: text.replace('"vllm"', '"octavo"') for name, text in texts("vllm").items()}
    assert changed == texts()


def test_dashboards_have_what_links_and_people_need() -> None:
    uids = [dashboard["uid"] for dashboard in dashboards()]
    assert uids == ["octavo-latency", "octavo-overview", "octavo-scheduler", "octavo-tenants"]
    for dashboard in dashboards():
        (link,) = dashboard["links"]
        assert set(link["tags"]) <= set(dashboard["tags"])
        assert link["includeVars"]
        numbers = [panel["id"] for panel in dashboard["panels"]]
        assert len(set(numbers)) == len(numbers)
        names = [variable["name"] for variable in dashboard["templating"]["list"]]
        assert names[:5] == ["datasource", "prefix", "job", "instance", "model_name"]


def test_panels_do_not_overlap() -> None:
    for dashboard in dashboards():
        for a, b in itertools.combinations([panel["gridPos"] for panel in dashboard["panels"]], 2):
            apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
            assert apart or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= WIDTH for panel in dashboard["panels"])


def test_panels_say_what_they_show() -> None:
    for panel in panels():
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            assert target["legendFormat"] or panel["type"] == "stat", panel["title"]
            assert set(re.findall(r"\[([^]]+)\]", target["expr"])) <= {"$__rate_interval", "$__range"}


def test_objectives_are_bounds_of_their_histograms() -> None:
    for choices, bounds in ((FIRST_TOKEN_SLOS, FIRST_TOKEN_BUCKETS), (PER_TOKEN_SLOS, INTER_TOKEN_BUCKETS)):
        assert set(choices) <= set(map(floatToGoString, bounds))
    (objective,) = set(
        re.findall(r'time_to_first_token_seconds_bucket\{le="(.*?)"', (PROMETHEUS / RULES[0]).read_text())
    )
    assert objective in FIRST_TOKEN_SLOS


# ---- the table of instruments


def test_every_metric_that_is_asked_for_exists() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    known = {exported_name(instrument.name) for instrument in INSTRUMENTS} | recorded | OTHERS
    for each in [*panel_expressions(), *rule_expressions(), *link_expressions('job="octavo"')]:
        assert metrics_of(each.promql), each
        assert metrics_of(each.promql) <= known, each


def test_every_instrument_is_shown() -> None:
    shown = set().union(*(metrics_of(each.promql) for each in panel_expressions()))
    hidden = {instrument.name for instrument in INSTRUMENTS if exported_name(instrument.name) not in shown}
    assert hidden == UNUSED.keys()


def test_every_recorded_series_is_used() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    alerts = [each for each in rule_expressions() if each.place.startswith("rule Octavo")]
    assert recorded == {name for each in [*panel_expressions(), *alerts] for name in metrics_of(each.promql) & recorded}


# ---- rules


def test_every_alert_says_what_to_do() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len({alert["alert"] for alert in alerts}) == len(alerts)
    for alert in alerts:
        assert alert["alert"].startswith("Octavo")
        assert alert["labels"]["severity"] in ("critical", "warning")
        assert alert["annotations"].keys() == {"summary", "runbook"}
        assert len(alert["annotations"]["runbook"]) > 80


def test_every_alert_is_tested_firing_and_not_firing() -> None:
    tests = shipped_yaml("prometheus/alerts.test.yaml")["tests"]
    fired = {
        name
        for test in tests
        for expected in test["promql_expr_test"]
        for sample in expected["exp_samples"]
        for name in re.findall(r'alertname="(\w+)"', sample["labels"])
    }
    assert fired == {rule["alert"] for rule in rules() if "alert" in rule}
    # Nothing at all fires in the first test, and whatever fires does so in a test that has a time before it.
    busy, *others = tests
    series = " ".join(each["series"] for each in busy["input_series"])
    asked = set().union(
        *(metrics_of(each.promql) for each in rule_expressions() if each.place != "rule OctavoNoTarget")
    )
    assert {name for name in asked if name not in series and not name.startswith("job_model:")} == set()
    for test in others:
        assert test["promql_expr_test"][0]["exp_samples"] == [], test["name"]


@needs_promtool
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", *(str(PROMETHEUS / name) for name in RULES)),
        ("check", "config", str(PROMETHEUS / "prometheus.yaml")),
        ("test", "rules", str(PROMETHEUS / "alerts.test.yaml")),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_promtool_agrees(arguments: tuple[str, ...]) -> None:
    said = promtool(*arguments)
    assert said.returncode == 0, said.stdout + said.stderr


@needs_promtool
def test_the_tests_of_the_rules_can_fail(tmp_path: Path) -> None:
    for name in RULES:
        text = (PROMETHEUS / name).read_text()
        (tmp_path / name).write_text(
            text.replace("predicted_queue_wait_seconds > 30", "predicted_queue_wait_seconds > 50")
        )
    tests = shipped_yaml("prometheus/alerts.test.yaml")
    tests["tests"] = [test for test in tests["tests"] if "queue" in test["name"]]
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(tests))
    said = promtool("test", "rules", str(tmp_path / "test.yaml"))
    assert said.returncode != 0
    assert "OctavoQueueWaitLong" in said.stdout + said.stderr


# ---- the other services, which are not started here


def test_images_are_pinned_and_ports_are_this_machines() -> None:
    services = shipped_yaml("compose.yaml")["services"]
    assert services.keys() == {"prometheus", "grafana", "otel-collector", "tempo"}
    for name, service in services.items():
        assert re.fullmatch(r"[\w/-]+:v?\d+\.\d+\.\d+", service["image"]), name
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
    assert services["prometheus"]["extra_hosts"] == ["host.docker.internal:host-gateway"]


def test_what_services_mount_is_there() -> None:
    compose = shipped_yaml("compose.yaml")
    for service in compose["services"].values():
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert (ROOT / source).exists() if source.startswith("./") else source in compose["volumes"], volume


def test_addresses_lead_to_services() -> None:
    services = shipped_yaml("compose.yaml")["services"]
    files = ("otel-collector.yaml", "grafana/provisioning/datasources/octavo.yaml")
    hosts = set().union(*(re.findall(r"(?://|endpoint: )([a-z]\w*):\d+", (ROOT / name).read_text()) for name in files))
    assert hosts == {"prometheus", "tempo"}
    assert hosts <= services.keys()
    collector = shipped_yaml("otel-collector.yaml")
    for pipeline in collector["service"]["pipelines"].values():
        for kind in ("receivers", "processors", "exporters"):
            assert set(pipeline[kind]) <= collector[kind].keys()
    sources = {
        each["uid"]: each for each in shipped_yaml("grafana/provisioning/datasources/octavo.yaml")["datasources"]
    }
    assert sources[PROMETHEUS_UID]["isDefault"]
    assert sources["octavo-tempo"]["jsonData"]["tracesToMetrics"]["datasourceUid"] == PROMETHEUS_UID
    (provider,) = shipped_yaml("grafana/provisioning/dashboards/octavo.yaml")["providers"]
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home.startswith(provider["options"]["path"] + "/")
    assert (FOLDER / home.rpartition("/")[2]).is_file()
    assert json.loads((FOLDER / home.rpartition("/")[2]).read_text())["uid"] == "octavo-overview"
