"""Files for GitHub: workflows, issue forms and the citation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"[\w-]+/[\w-]+@v\d+\.\d+\.\d+")


def load(path: Path) -> Any:
    return yaml.load(path.read_text("utf-8"), Loader=yaml.BaseLoader)


def steps(workflow: Path) -> list[dict[str, Any]]:
    return [step for job in load(workflow)["jobs"].values() for step in job.get("steps", [])]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_and_make_targets_exist(workflow: Path) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)", makefile, re.MULTILINE)
    targets = {
        name for step in steps(workflow) for name in re.findall(r"make (\w+)$", step.get("run", ""))
    }
    assert targets <= set(phony.split())
    assert all(PINNED.fullmatch(step["uses"]) for step in steps(workflow) if "uses" in step)
    called = [job["uses"] for job in load(workflow)["jobs"].values() if "uses" in job]
    assert all((ROOT / path).is_file() for path in called)


def test_only_jobs_that_publish_may_write() -> None:
    assert [path.stem for path in WORKFLOWS] == ["clients", "image", "release", "test"]
    for workflow in WORKFLOWS:
        content = load(workflow)
        assert content["permissions"] == {"contents": "read"}
        writers = {
            name
            for name, job in content["jobs"].items()
            if "write" in job.get("permissions", {}).values()
        }
        assert writers <= {"publish", "image"}
        assert not writers or "pull_request" not in content["on"]


def test_clients_run_when_routes_change() -> None:
    """A route that a client reads was changed once, and its test stayed as it was."""
    content = load(ROOT / ".github" / "workflows" / "clients.yml")
    paths = content["on"]["push"]["paths"]
    assert content["on"]["pull_request"]["paths"] == paths
    assert {"service/api/**", "service/http/**", "tests/drop_in/**"} <= set(paths)
    assert all((ROOT / path.removesuffix("/**")).exists() for path in paths)
    assert [step["run"] for step in steps(ROOT / ".github" / "workflows" / "clients.yml")[2:]] == [
        "make clients"
    ]


def test_image_targets_are_stages_of_the_dockerfile() -> None:
    stages = re.findall(
        r"^FROM \S+ AS (\S+)", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE
    )
    job = load(ROOT / ".github" / "workflows" / "image.yml")["jobs"]["image"]
    targets = job["strategy"]["matrix"]["target"]
    assert {*targets, *(f"sbom-{target}" for target in targets)} <= set(stages)
