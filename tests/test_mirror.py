"""Tests mirror modules, so that a file's tests are found by the file's name.

Those of `service/a/b.py` are in `tests/service/a/test_b.py`, further aspects of it in
`tests/service/a/test_b_<aspect>.py`; what starts real processes and crosses the tree is in
`tests/journeys/`.
"""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
PACKAGES = ("model", "service")
WITHOUT_TESTS = {
    "model/errors.py": "names of errors",
    "model/numerics/pair_template.py": "declarations; the tests of templated texts hold them",
    "model/config/precision.py": "names; the tests of manifests and verification hold them",
    "model/runtimes/sessions.py": "declarations; the tests of each graph hold them",
    "service/__main__.py": "calls the command line",
    "service/api/wire/media.py": "names and sizes; the tests of the forms hold the sizes",
    "service/engines/contract.py": "declarations; the tests of each engine hold them",
    "service/scheduler/observer.py": "declarations; the tests of metrics hold what is reported",
    "service/inference/encoding.py": "declarations; the tests of the core hold them",
    "service/inference/tokenization/tokenized.py": "declarations; the tokenizer's tests hold them",
    "service/inference/reader.py": "declarations; the tests of tokenizer and pictures hold them",
    "service/files/encoder.py": "declarations; the tests of both encoders hold them",
    "service/files/rows.py": "declarations; the tests of each source hold them",
    "service/request_context.py": "declarations; the tests of exchange and routes hold them",
    "service/telemetry/buckets.py": "numbers; the tests of http_metrics hold what they are for",
    "service/inference/ranking/scorer.py": "declarations; the tests of each scorer hold them",
    "service/errors.py": "names of errors; the tests of problems hold their form",
}
"""Modules without anything to test, and the reasons."""
MODULES = [
    path.relative_to(ROOT)
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    if path.name != "__init__.py"
]
TEST_FILES = [
    path.relative_to(TESTS)
    for package in PACKAGES
    for path in sorted((TESTS / package).rglob("test_*.py"))
]


def module_of(test_file: Path) -> Path | None:
    """Return the module after which a test file is named; of several, the longest name wins."""
    name = test_file.stem.removeprefix("test_")
    found = [
        module
        for module in MODULES
        if module.parent == test_file.parent and f"{name}_".startswith(f"{module.stem}_")
    ]
    return max(found, key=lambda module: len(module.stem), default=None)


def test_every_module_has_tests_of_its_name() -> None:
    """Only the listed modules have no tests, and each listed module exists."""
    tested = {module_of(test_file) for test_file in TEST_FILES}
    assert {str(module) for module in MODULES if module not in tested} == WITHOUT_TESTS.keys()


def test_every_test_file_is_named_after_a_module() -> None:
    assert [test_file for test_file in TEST_FILES if module_of(test_file) is None] == []


def test_the_longest_name_counts() -> None:
    folder = Path("service/engines")
    assert module_of(folder / "test_torch.py") == folder / "torch.py"
    assert module_of(folder / "test_torch_over_http.py") == folder / "torch.py"
    assert module_of(folder / "test_torch_process_ends.py") == folder / "torch_process.py"
    assert module_of(folder / "test_torchless.py") is None
    assert module_of(Path("service/test_torch.py")) is None
