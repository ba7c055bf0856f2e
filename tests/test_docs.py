"""Docs name every setting, route, metric and error, and no others."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest
from fastapi.routing import APIRoute

from model.families.registry import FAMILIES
from service import errors
from service.api import documentation
from service.api.dialects import DIALECTS
from service.api.native.attention.selection import AttentionRequest
from service.api.native.encode_request import EncodeRequest
from service.api.native.explain import ExplainRequest
from service.api.native.rank import RankRequest
from service.api.tei.scores import PredictRequest, RerankRequest
from service.api.tei.vectors import EmbedSparseRequest
from service.scheduler.call import RefusalReason
from service.settings import Settings
from service.telemetry.metrics import Metrics

ROOT = Path(__file__).resolve().parents[1]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def rows(text: str) -> set[str]:
    """Return the first cell of every table row, without its backticks."""
    return {
        name
        for row in re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", row)
    }


def test_setting_defaults():
    for name, field in Settings.flags().items():
        row = re.search(
            rf"^\| `--{name.replace('_', '-')}` \| ([^|]+) \|",
            read("docs/configuration.md"),
            re.MULTILINE,
        )
        shown = row[1].strip().strip("`")
        if field.default_factory is None and field.default is not None:
            default = str(field.default).removesuffix(".0")
            assert shown == {"False": "false", "True": "true"}.get(default, default)


def test_families():
    table = read("docs/checkpoints.md").split("## Families")[1].split("###")[0]
    assert rows(table) == FAMILIES.keys() | {"model_type"}


def test_routes():
    served = {
        f"{method} {route.path_format}"
        for dialect in DIALECTS
        for router in dialect.routers
        if router is not documentation.router
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in route.methods - {"HEAD"}
    }
    pages = read("docs/api.md") + read("docs/dialects.md")
    named = set(re.findall(r"((?:GET|POST|PUT|DELETE) /[a-z0-9/._{}]*)", pages))
    assert named == served | {"GET /docs", "GET /openapi.json"}


@pytest.mark.parametrize("schema", [PredictRequest, RerankRequest, EmbedSparseRequest])
def test_fields_of_task_heads(schema):
    text = read("docs/api.md").split("## POST /predict")[1].split("## The other routes")[0]
    assert {f"`{name}`" for name in schema.model_fields} <= set(re.findall(r"`[a-z_0-9]+`", text))


@pytest.mark.parametrize("schema", [EncodeRequest, AttentionRequest, ExplainRequest, RankRequest])
def test_fields(schema):
    text = read("docs/api.md").split("## The binary form")[0]
    assert {f"`{name}`" for name in schema.model_fields} <= set(re.findall(r"`[a-z_]+`", text))


def test_metrics():
    """Every metric is documented with its type and labels, and no others."""
    metrics = Metrics()
    exposed = set()
    for family in metrics.registry.collect():
        if family.name.startswith("headscope_"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = metrics.registry._names_to_collectors[name]._labelnames
            exposed.add((name, family.type, ", ".join(labels)))
    row = re.compile(r"^\| `(headscope_\w+)` \| (\w+) \| ([\w, ]*?) ?\|", re.MULTILINE)
    assert set(row.findall(read("docs/metrics.md"))) == exposed


def test_reasons_of_refusals():
    """The documented reasons equal the names of the error classes."""
    text = read("docs/metrics.md").split("### Reasons")[1].split("## Models")[0]
    known = {
        error("").reason
        for _, error in inspect.getmembers(errors, inspect.isclass)
        if issubclass(error, errors.ServiceError)
    }
    queue = {f"queue_{reason}" for reason in get_args(RefusalReason)} | {"tokenizer", "pictures"}
    held = {"bytes_of_bodies", "bytes_of_replies"}
    named = rows(text) | {"invalid_request", "unprocessable", "input_too_long"}
    assert queue | held <= named
    assert named - known == queue | held | {"not_found", "method_not_allowed"}


def test_statuses():
    raised = {
        error.status
        for _, error in inspect.getmembers(errors, inspect.isclass)
        if issubclass(error, errors.ServiceError)
    }
    documented = {
        int(code) for code in re.findall(r"^\| (\d{3}) \|", read("docs/api.md"), re.MULTILINE)
    }
    assert documented == raised


PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
PATH = re.compile(
    r"`((?:benchmarks|clients|deploy|docs|model|service|testing|tests|trials)/[\w./-]*)`"
)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in titles)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in plain}


def test_links_lead_somewhere() -> None:
    missing = [
        f"{page.name}: {target}"
        for page in [*PAGES, ROOT / "CHANGELOG.md"]
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text("utf-8"))
        if not target.startswith("http") and not leads_somewhere(page, *target.partition("#")[::2])
    ]
    assert missing == []


def leads_somewhere(page: Path, target: str, anchor: str) -> bool:
    path = page.parent / target if target else page
    return path.exists() and (not anchor or anchor in anchors(path))


def test_paths_that_pages_name_exist() -> None:
    missing = [
        f"{page.name}: {path}"
        for page in PAGES
        for path in PATH.findall(page.read_text("utf-8"))
        if not (ROOT / path).exists()
    ]
    assert missing == []


def test_wheels_and_the_changelog_have_the_version_of_both_distributions() -> None:
    """Pages name the wheels of this version, and its entry is the newest of the changelog."""
    projects = [read("pyproject.toml"), read("clients/python/pyproject.toml")]
    (version,) = {tomllib.loads(text)["project"]["version"] for text in projects}
    wheels = re.findall(r"headscope(?:_server)?-([\d.]+)-py3", read("docs/operations.md"))
    image = re.findall(r"newTag: ([\d.]+)", read("docs/operations.md"))
    newest = re.findall(
        r"^## \[(\d[\d.]*)\] - \d{4}-\d\d-\d\d$", read("CHANGELOG.md"), re.MULTILINE
    )[0]
    assert {*wheels, *image, newest} == {version}


def test_the_index_of_decisions_has_each_once() -> None:
    paths = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))
    lines = [
        f"- [{path.name[:4]}]({path.name}) {path.read_text().splitlines()[0].removeprefix('# ')}"
        for path in paths
    ]
    assert re.findall(r"^- .*", read("docs/decisions/README.md"), re.MULTILINE) == lines
    assert len({path.name[:4] for path in paths}) == len(paths)
