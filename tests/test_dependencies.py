"""Installed packages are pinned, declared, and without known vulnerabilities."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
FOR_WHO_DEVELOPS = {"test", "bench"}
"""Extras for developers, which the packages themselves must not need."""
UNREACHABLE = re.compile(r"requests\.exceptions\.\w*(Connection|Timeout|Proxy|SSL)\w*: .*")


def project(folder: Path) -> dict[str, Any]:
    """Return the `project` table of a folder's pyproject.toml."""
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


CLIENT = ROOT / "clients" / "python"
DISTRIBUTIONS = {
    "service": (project(ROOT), [ROOT / "model", ROOT / "service"]),
    "client": (project(CLIENT), [CLIENT / "headscope"]),
}
"""Project table and package folders of each distribution."""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def names(requirements: list[str]) -> set[str]:
    return {normal(re.split(r"[^\w.-]", requirement)[0]) for requirement in requirements}


def constraints() -> list[str]:
    return CONSTRAINTS.read_text(encoding="utf-8").splitlines()


def imported(packages: list[Path]) -> set[str]:
    """Return every module that the packages import, anywhere."""
    found = set()
    for package in packages:
        for path in package.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    found |= {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    found.add(str(node.module))
    return found


def test_every_constraint_is_one_version() -> None:
    lines = constraints()
    for line in lines:
        assert re.fullmatch(r"[A-Za-z0-9][\w.-]*==\d[\w.!]*", line), line
    assert len(names(lines)) == len(lines)


def test_every_dependency_is_constrained() -> None:
    own = {normal(project["name"]) for project, _ in DISTRIBUTIONS.values()}
    for project, _ in DISTRIBUTIONS.values():
        extras = project["optional-dependencies"].values()
        declared = names(project["dependencies"]).union(*map(names, extras))
        assert declared - own <= names(constraints())


def test_what_is_installed_is_what_is_pinned() -> None:
    pinned = {
        normal(name): version for name, version in (line.split("==") for line in constraints())
    }
    for name, version in pinned.items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform
        assert found.partition("+")[0] == version, name


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_what_is_imported_is_declared(name: str) -> None:
    project, packages = DISTRIBUTIONS[name]
    extras = project["optional-dependencies"]
    declared = names(project["dependencies"]).union(
        *(names(extras[name]) for name in extras.keys() - FOR_WHO_DEVELOPS)
    )
    known = importlib.metadata.packages_distributions()
    ours = {package.name for package in packages}
    for module in imported(packages):
        top = module.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in ours:
            found = {normal(name) for name in known.get(top, [])}
            assert found & declared, f"{module} is of {found or 'nothing'}"


def findings(report: dict[str, Any]) -> list[str]:
    """Return the vulnerabilities in a JSON report of pip-audit."""
    found = []
    for package in report["dependencies"]:
        if reason := package.get("skip_reason"):
            found.append(f"{package['name']} was not audited: {reason}")
        for vulnerability in package.get("vulns", []):
            fixed = ", ".join(vulnerability["fix_versions"]) or "no version"
            found.append(
                f"{package['name']} {package['version']}: {vulnerability['id']}, fixed in {fixed}"
            )
    return found


def test_uvicorn_is_bounded_above() -> None:
    """The HTTP layer leans on parts of it that are not its public interface."""
    (line,) = (one for one in DISTRIBUTIONS["service"][0]["dependencies"] if "uvicorn" in one)
    assert "<" in line


@pytest.mark.slow
def test_no_known_vulnerability() -> None:
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(CONSTRAINTS)]
    command += ["--no-deps", "--disable-pip", "--vulnerability-service", "osv", "--timeout", "10"]
    command += ["--format", "json", "--progress-spinner", "off"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    if not done.stdout and (unreachable := UNREACHABLE.search(done.stderr)):
        pytest.skip(f"the database of vulnerabilities cannot be reached: {unreachable[0][:120]}")
    report = json.loads(done.stdout)
    assert names([package["name"] for package in report["dependencies"]]) == names(constraints())
    assert findings(report) == []
