"""Grafana's files, checked by Grafana's types, promtool, and the service's metrics."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from testing.promtool import MISSING, found, promtool

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "grafana"
PROVISIONED = "/etc/grafana/provisioning/"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboards" / "headscope.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [
    (f"{panel['title']} {target['refId']}", target["expr"])
    for panel in PANELS
    for target in panel["targets"]
]


def concrete(query: str) -> str:
    """Return a query as Grafana sends it, with a value in place of each variable."""
    for variable, value in (("$__rate_interval", "1m"), ("$job", "headscope"), ("$model", ".*")):
        query = query.replace(variable, value)
    return query.replace("$instance", ".*")


def lost(given: Any, kept: Any, where: str = "") -> Iterator[str]:
    """Yield the paths at which another document lacks a value or has a different one."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            if key in kept:
                yield from lost(value, kept[key], f"{where}/{key}")
            else:
                yield f"{where}/{key}"
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for number, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from lost(one, other, f"{where}/{number}")
    elif given != kept:
        yield where


def by_grafanas_types(content: dict[str, Any]) -> Any:
    """Read a dashboard into the types that Grafana generates from its schema, and write it back."""
    reason = "Grafana's types are not installed: pip install '.[test]'"
    dashboard = pytest.importorskip("grafana_foundation_sdk.models.dashboard", reason=reason)
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder", reason=reason)
    plugins = pytest.importorskip("grafana_foundation_sdk.cog.plugins", reason=reason)
    plugins.register_default_plugins()
    read = dashboard.Dashboard.from_json(content)
    return json.loads(json.dumps(read, cls=encoder.JSONEncoder))


def test_the_dashboard_has_what_grafana_knows_and_nothing_else() -> None:
    assert list(lost(DASHBOARD, by_grafanas_types(DASHBOARD))) == []


def test_panels_do_not_overlap() -> None:
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert {x for x, _ in cells} == set(range(24))
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)


@pytest.mark.skipif(found("promtool") is None, reason=MISSING.format("promtool"))
def test_every_query_is_promql(tmp_path: Path) -> None:
    rules = [
        {"record": f"query:{number}", "expr": concrete(query)}
        for number, (_, query) in enumerate(QUERIES)
    ]
    (tmp_path / "rules.yml").write_text(
        yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]})
    )
    done = promtool("check", "rules", tmp_path / "rules.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(QUERIES)} rules found" in done.stdout


@pytest.mark.parametrize(("panel", "query"), QUERIES, ids=[name for name, _ in QUERIES])
def test_every_query_asks_for_what_is_there(
    panel: str, query: str, strangers: Callable[[str], set[str]]
) -> None:
    assert strangers(query) == set(), panel


def test_variables_ask_for_what_is_there(strangers: Callable[[str], set[str]]) -> None:
    _, *variables = DASHBOARD["templating"]["list"]
    assert [one["name"] for one in variables] == ["job", "instance", "model"]
    for variable in variables:
        assert strangers(variable["query"]["query"]) == set()
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in PANELS)


def test_grafana_is_told_where_the_files_are() -> None:
    (provider,) = yaml.safe_load((FOLDER / "dashboards" / "headscope.yml").read_text())["providers"]
    folder = provider["options"]["path"]
    assert folder.startswith(PROVISIONED)
    assert [file.suffix for file in (FOLDER / folder.removeprefix(PROVISIONED)).glob("*.json")]
    content = yaml.safe_load((FOLDER / "datasources" / "prometheus.yml").read_text())
    (source,) = content["datasources"]
    assert (source["type"], source["access"]) == ("prometheus", "proxy")
