"""Prometheus' configuration and alerts, against promtool and the service's metrics."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from testing.haproxy import haproxy
from testing.promtool import MISSING, found, promtool

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "prometheus"
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
TESTS = yaml.safe_load((FOLDER / "alerts_test.yml").read_text())["tests"]
needs_promtool = pytest.mark.skipif(found("promtool") is None, reason=MISSING.format("promtool"))


@needs_promtool
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", FOLDER / "prometheus.yml"),
        ("check", "rules", "--lint-fatal", FOLDER / "alerts.yml"),
        ("test", "rules", FOLDER / "alerts_test.yml"),
    ],
    ids=["config", "rules", "alerts"],
)
def test_promtool_accepts(arguments: tuple[str | Path, ...]) -> None:
    done = promtool(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_the_metrics_are_named_by_convention(page: str) -> None:
    done = promtool("check", "metrics", text=page)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@needs_promtool
@pytest.mark.parametrize("broken", [{"expr": "vector(1) > 2"}, {"expr": "vector(1)", "for": "0s"}])
def test_alerts_that_never_or_always_fire_fail_each_of_their_tests(
    broken: dict[str, str], tmp_path: Path
) -> None:
    rules = [rule | broken for rule in RULES]
    content = {"groups": [{"name": "all", "rules": rules}]}
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump(content))
    (tmp_path / "alerts_test.yml").write_text((FOLDER / "alerts_test.yml").read_text())
    done = promtool("test", "rules", tmp_path / "alerts_test.yml")
    failed = set(re.findall(r"^ +name: (.*),$", done.stdout + done.stderr, re.MULTILINE))
    assert failed == {test["name"] for test in TESTS}


def test_every_alert_is_fired_and_kept_silent() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    silent, fired = set(), set()
    for test in TESTS:
        for expected in test["alert_rule_test"]:
            (fired if expected["exp_alerts"] else silent).add(expected["alertname"])
    assert silent == fired == {rule["alert"] for rule in RULES}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alerts_ask_for_metrics_that_are_there(
    rule: dict[str, Any], strangers: Callable[[str], set[str]]
) -> None:
    if "haproxy_" in rule["expr"] and haproxy() is None:
        pytest.skip("no haproxy: apt-get install haproxy")
    assert strangers(rule["expr"]) == set()
    assert rule["labels"]["severity"] in ("page", "ticket")


def test_each_alert_has_its_entry_in_the_runbook() -> None:
    text = (FOLDER.parents[1] / "docs" / "runbook.md").read_text(encoding="utf-8")
    headings = re.findall(r"^### (Headscope\w+)$", text, re.MULTILINE)
    assert sorted(headings) == sorted(rule["alert"] for rule in RULES)
