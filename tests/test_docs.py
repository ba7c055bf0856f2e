"""Tables of the docs are those of the code, and links lead somewhere."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from model.families.registry import FAMILIES
from service import errors
from service.api.dialects import DIALECTS
from service.api.native.attention.selection import AttentionRequest
from service.api.native.encode_request import EncodeRequest
from service.api.native.explain import ExplainRequest
from service.api.native.rank import RankRequest
from service.api.tei.scores import PredictRequest, RerankRequest
from service.api.tei.vectors import EmbedSparseRequest
from service.scheduler.call import RefusalReason
from testing import reference

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


def test_tables_are_those_of_the_code() -> None:
    """`python -m testing.reference` writes them."""
    pages = {page.name: page.read_text(encoding="utf-8") for page in reference.pages()}
    assert pages.keys() >= {"api.md", "configuration.md", "metrics.md"}
    assert pages == {name: reference.written(text) for name, text in pages.items()}


def test_families():
    table = read("docs/checkpoints.md").split("## Families")[1].split("###")[0]
    assert rows(table) == FAMILIES.keys() | {"model_type"}


def test_dialects_name_their_routes() -> None:
    routes = reference.served(DIALECTS)
    served = {f"{method} {one.path_format}" for one in routes for method in one.methods - {"HEAD"}}
    named = re.findall(r"((?:GET|POST|PUT|DELETE) /[a-z0-9/._{}]*)", read("docs/dialects.md"))
    table = re.findall(r"^\| `([A-Z]+ /[^`]*)` \|", read("docs/api.md"), re.MULTILINE)
    assert {*named, *table, "GET /vocabulary"} == served


@pytest.mark.parametrize(
    ("page", "schemas"),
    {
        "encode.md": [EncodeRequest],
        "attention.md": [AttentionRequest],
        "explain.md": [ExplainRequest, RankRequest],
        "task-heads.md": [PredictRequest, RerankRequest, EmbedSparseRequest],
    }.items(),
)
def test_fields(page: str, schemas: list[type[BaseModel]]) -> None:
    named = set(re.findall(r"`([a-z_0-9]+)`", read(f"docs/{page}")))
    for schema in schemas:
        assert schema.model_fields.keys() <= named


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


FOLDERS = (ROOT / "docs", ROOT / "deploy")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES += sorted(page for folder in FOLDERS for page in folder.rglob("*.md"))
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


def test_cells_of_tables_are_short() -> None:
    """A cell has at most 25 words; a link counts its text."""
    long = [
        f"{page.name}: {cell.strip()}"
        for page in PAGES
        for row in re.findall(r"^\|.*", page.read_text("utf-8"), re.MULTILINE)
        for cell in re.split(r"(?<!\\)\|", row)
        if len(re.sub(r"\]\([^)]*\)", "]", cell).split()) > 25
    ]
    assert long == []


def test_wheels_and_the_changelog_have_the_version_of_both_distributions() -> None:
    """Pages name the wheels of this version, and its entry is the newest of the changelog."""
    projects = [read("pyproject.toml"), read("clients/python/pyproject.toml")]
    (version,) = {tomllib.loads(text)["project"]["version"] for text in projects}
    wheels = re.findall(r"headscope(?:_server)?-([\d.]+)-py3", read("docs/operations.md"))
    image = re.findall(r"newTag: ([\d.]+)", read("deploy/kubernetes/README.md"))
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
