"""Prometheus and Grafana take the rules and the dashboard, which name metrics that exist. Alerts have runbooks."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
RULES = yaml.safe_load((PROMETHEUS / "egeria.rules.yml").read_text(encoding="utf-8"))
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "egeria.json").read_text(encoding="utf-8"))
METRIC = re.compile(r"(?<![\w:])(?:egeria|process)_\w+")


def all_rules() -> list[dict]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def undocumented(expression: str) -> set[str]:
    """The metrics of an expression that docs/reference/metrics.md does not have."""
    documented = set(METRIC.findall((ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")))
    return set(METRIC.findall(expression)) - documented


def promtool(*arguments: str) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("there is no promtool on this machine")
    ran = subprocess.run(["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_promtool_takes_the_rules():
    promtool("check", "rules", "egeria.rules.yml")


def test_promtool_takes_the_configuration():
    promtool("check", "config", "prometheus.yml")


def test_the_rules_do_what_they_say():
    promtool("test", "rules", "egeria.rules.test.yml")


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_every_metric_of_a_rule_exists(rule: dict):
    assert METRIC.findall(rule["expr"])
    assert undocumented(rule["expr"]) == set()


def test_a_metric_that_does_not_exist_is_found():
    assert undocumented("egeria_job_stepp > egeria_job_step") == {"egeria_job_stepp"}


def test_every_alert_has_its_runbook_and_its_test():
    page = (ROOT / "docs" / "guides" / "monitoring.md").read_text(encoding="utf-8")
    tests = (PROMETHEUS / "egeria.rules.test.yml").read_text(encoding="utf-8")
    alerts = [rule for rule in all_rules() if "alert" in rule]
    assert alerts
    for rule in alerts:
        name = rule["alert"]
        assert rule["annotations"]["runbook"] == f"docs/guides/monitoring.md#{name.lower()}"
        assert f"### {name}\n" in page
        assert f'alertname="{name}"' in tests


def test_every_metric_of_the_dashboard_exists():
    expressions = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    assert len(expressions) > 20
    assert {expression: undocumented(expression) for expression in expressions if undocumented(expression)} == {}


def losses(ours, theirs, at: str = "") -> list[str]:
    """Where `theirs` lacks something that `ours` has, or has something else there."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [found for key in ours for found in losses(ours[key], theirs.get(key), f"{at}/{key}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [found for index, each in enumerate(ours) for found in losses(each, theirs[index], f"{at}/{index}")]
    return [] if ours == theirs else [f"{at}: {ours!r} became {theirs!r}"]


def read_by_grafana(dashboard: dict) -> dict:
    """The dashboard as Grafana's own types have it: what they do not know is left out."""
    pytest.importorskip("grafana_foundation_sdk", reason="there is no grafana-foundation-sdk")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    return json.loads(json.dumps(Dashboard.from_json(dashboard), cls=JSONEncoder))


def test_grafanas_types_know_all_of_the_dashboard():
    assert losses(DASHBOARD, read_by_grafana(DASHBOARD)) == []


def test_what_grafanas_types_do_not_know_is_found():
    wrong = json.loads(json.dumps(DASHBOARD))
    wrong["panels"][0]["gridPos"]["width"] = 3
    assert losses(wrong, read_by_grafana(wrong)) == ["/panels/0/gridPos/width: 3 became None"]


def test_no_panel_lies_over_another():
    places = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(places) == len(set(places))
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
