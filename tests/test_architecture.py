"""The house rules, read from the source: who imports whom, and how large anything gets."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TORCH_FREE = {
    f"model.{name}"
    for name in (
        "artifact",
        "batch",
        "cache",
        "compare",
        "config",
        "errors",
        "golden",
        "pooling",
        "processor",
        "runtime",
        "runtime_onnx",
        "runtime_openvino",
        "sentence",
        "signature",
        "sources",
    )
}
"""What the service may import from `model` as it starts."""
TORCH_PROCESS = "service.engines.torch_worker"
WEB = {"fastapi", "starlette", "uvicorn", "httpx", "pydantic_settings"}
KNOW_THE_WEB = {"app", "server", "workers.worker", "settings", "cli"}
"""Beside the routes and what stands in front of them."""
HEAVY = {"torch", "onnx", "onnxscript", "transformers", "huggingface_hub"}
FOR_TESTS = {"transformers", "sentence_transformers", "pytest", "hypothesis", "httpx", "scipy"}


@dataclass(frozen=True)
class Import:
    module: str
    """The full dotted name of what is imported, as far as it is a module."""
    lazy: bool
    """Inside a function: not when the module is loaded."""


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


SOURCES = {
    name_of(path): path
    for package in ("model", "service")
    for path in sorted((ROOT / package).rglob("*.py"))
}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in SOURCES.items()}


def walk(node: ast.AST, lazy: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        inside = lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield child, inside
        yield from walk(child, inside)


def imports(name: str) -> Iterator[Import]:
    for node, lazy in walk(TREES[name]):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, lazy)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield Import(full if full in SOURCES else str(node.module), lazy)


IMPORTS = {name: list(imports(name)) for name in SOURCES}


def importers(*packages: str, loading: bool = False) -> set[str]:
    """Modules that import something of these packages, anywhere or only as they load."""
    return {
        name
        for name, found in IMPORTS.items()
        for item in found
        if item.module.split(".")[0] in packages and not (loading and item.lazy)
    }


def imported(name: str, package: str, *, loading: bool = False) -> set[str]:
    return {
        item.module
        for item in IMPORTS[name]
        if item.module.split(".")[0] == package and not (loading and item.lazy)
    }


def under(prefix: str) -> set[str]:
    return {name for name in SOURCES if name == prefix or name.startswith(f"{prefix}.")}


def test_the_model_knows_nothing_of_the_service() -> None:
    assert importers("service") <= under("service")


def test_the_service_loads_only_what_is_free_of_torch() -> None:
    for name in under("service") - {TORCH_PROCESS}:
        assert imported(name, "model", loading=True) <= TORCH_FREE, name
        if name not in ("service.cli", "service.artifacts"):
            assert imported(name, "model") <= TORCH_FREE, name


def test_torch_is_the_models_and_one_processes() -> None:
    assert importers("torch") <= under("model") | {TORCH_PROCESS}
    assert importers("onnx", "onnxscript") <= under("model")
    assert TORCH_PROCESS not in {item.module for found in IMPORTS.values() for item in found}


def test_each_runtime_is_loaded_by_who_serves_with_it() -> None:
    importer = {"onnxruntime": "model.runtime_onnx", "openvino": "model.processor"}
    assert {package: importers(package) for package in importer} == {
        package: {module} for package, module in importer.items()
    }
    for module in ("model.runtime_onnx", "model.runtime_openvino", "model.processor"):
        users = {name for name, found in IMPORTS.items() if module in {i.module for i in found}}
        assert users - {"model.runtime_openvino"} == {"model.runtime"}
        assert module not in imported("model.runtime", "model", loading=True)


def test_traces_are_made_in_one_place_by_who_asks_for_them() -> None:
    assert importers("opentelemetry") == {"service.front.tracing"}
    users = {
        name: [item.lazy for item in found if item.module == "service.front.tracing"]
        for name, found in IMPORTS.items()
    }
    assert {name: lazy for name, lazy in users.items() if lazy} == {"service.app": [True]}


@pytest.mark.parametrize("start", ["service.app", "service.server", "service.cli"])
def test_nothing_heavy_is_reached_as_the_service_loads(start: str) -> None:
    seen, todo = set(), [start]
    while todo:
        name = todo.pop()
        seen.add(name)
        assert name not in importers(*HEAVY, loading=True), name
        loads = imported(name, "model", loading=True) | imported(name, "service", loading=True)
        todo += (loads & SOURCES.keys()) - seen
    assert "service.settings" in seen


def test_few_know_the_web() -> None:
    known = {f"service.{name}" for name in KNOW_THE_WEB}
    known |= under("service.routes") | under("service.front")
    assert importers(*WEB) <= known
    others = under("service.engines") | under("service.scheduler") | under("service.oversight")
    assert not known & (others | {"service.wire"})


def test_the_scheduler_and_the_engines_know_the_contract_and_little_else() -> None:
    contract = "service.engines.base"
    scheduler = under("service.scheduler")
    assert imported("service.scheduler.lanes", "service") == {
        "service.errors",
        "service.scheduler.pace",
        contract,
    }
    known = scheduler | {"service.engines.collate", "service.errors", contract}
    for name in scheduler:
        assert imported(name, "service") <= known, name
    for name in under("service.engines") - {"service.engines"}:
        others = imported(name, "service") - {
            "service.engines.collate",
            "service.engines.memory",
            "service.errors",
            "service.logs",
            "service.system",
            contract,
        }
        assert others == set(), name
    assert imported(contract, "service") == set()
    assert imported("service.errors", "service") == set()
    assert len(SOURCES[contract].read_text(encoding="utf-8").splitlines()) <= 100


def test_what_is_said_of_maps_is_pure() -> None:
    insight = {item.module.split(".")[0] for item in IMPORTS["service.insight"]}
    assert insight == {"__future__", "collections", "typing", "numpy"}
    assert imported("service.budget", "service") == {"service.errors"}
    assert imported("service.maps", "service") == {
        "service.engines.base",
        "service.insight",
        "service.tensors",
    }


@pytest.mark.parametrize("name", ["maps", "stream", "wire_maps", "selection"])
def test_attention_is_computed_and_written_without_the_web(name: str) -> None:
    seen, todo = set(), [f"service.{name}"]
    while todo:
        module = todo.pop()
        seen.add(module)
        todo += (imported(module, "service") & SOURCES.keys()) - seen
    assert not seen & (importers(*WEB) | under("service.routes") | {"service.predictor"})


def test_only_tests_need_what_is_for_tests() -> None:
    assert importers(*FOR_TESTS) == set()


def test_settings_read_the_environment() -> None:
    """And what tells the system's libraries whatever it does not say."""
    names = {"environ", "environb", "getenv", "getenvb", "putenv", "load_dotenv"}
    for name in SOURCES.keys() - {"service.settings", "service.system"}:
        for node in ast.walk(TREES[name]):
            if isinstance(node, ast.Attribute):
                assert node.attr not in names, f"{name}:{node.lineno}"
            if isinstance(node, ast.ImportFrom):
                assert not names.intersection(alias.name for alias in node.names), name


def test_imports_run_one_way() -> None:
    graph = {
        name: {item.module for item in found if item.module in SOURCES and not item.lazy}
        for name, found in IMPORTS.items()
    }
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) == len(SOURCES)


@pytest.mark.parametrize("name", SOURCES)
def test_no_module_is_longer_than_300_lines(name: str) -> None:
    lines = len(SOURCES[name].read_text(encoding="utf-8").splitlines())
    assert lines <= 300
