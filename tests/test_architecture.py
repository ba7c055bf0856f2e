"""Rules of the architecture, checked in the source: allowed imports and sizes of files."""

from __future__ import annotations

import ast
import functools
import graphlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FLOORS = {
    "model": (
        {"errors", "vendor_telemetry"},
        {"config"},
        {"images"},
        {"families", "norms", "numerics", "tokenization"},
        {"artifact"},
        {"packing", "pickles", "sources"},
        {"low_rank"},
        {"attention"},
        {"encoder"},
        {"checkpoint", "decomposition"},
        {"decoder", "tasks"},
        {"runtimes"},
        {"export"},
    ),
    "service": (
        {"dashboard", "errors"},
        {"system"},
        {"settings"},
        {"engines"},
        {"scheduler"},
        {"inference"},
        {"exchange"},
        {"artifacts", "telemetry"},
        {"health", "http"},
        {"models"},
        {"api", "files"},
        {"app"},
        {"process"},
        {"cli"},
        {"__main__"},
    ),
}
"""The rooms of each package, folders and loose files, from the ground up.

A file of a folder has a floor of its own where it is named here.
"""
ROOMS = {room for floors in FLOORS.values() for rooms in floors for room in rooms}
CORE = ("engines", "scheduler", "inference")
"""Parts of the service that must not depend on a wire format."""
TORCH_FREE = (
    *("errors", "config", "images", "numerics", "artifact", "sources", "vendor_telemetry"),
    "tokenization.vocabulary",
)
"""Parts of the model that the service may import anywhere."""
TORCH_FREE_RUNTIMES = {
    "model.runtimes",
    "model.runtimes.capabilities",
    "model.runtimes.contract",
    "model.runtimes.cuda",
    "model.runtimes.registry",
}
EXPORTING = {
    f"service.{name}"
    for name in (
        *("artifacts.opening", "files.bench"),
        *("cli.export", "cli.verify"),
    )
}
"""Modules that import the exporter, only when there is something to export."""
CHILD_PROCESS = "service.engines.child"
WEB = {"fastapi", "starlette", "uvicorn", "httptools", "httpx", "pydantic_settings"}
WIRE = {"orjson", "safetensors", "base64", "pydantic"}
HEAVY = {"torch", "onnx", "onnxscript", "transformers", "huggingface_hub", "PIL"}
FOR_TESTS = {"sentence_transformers", "pytest", "hypothesis", "scipy"}
READERS = {
    "model.vendor_telemetry",
    "model.runtimes.cuda",
    *(
        f"service.{name}"
        for name in (
            "settings.schema",
            "system.hub",
            "system.resources",
            "cli.terminal",
            "process.listener",
        )
    ),
}
"""Modules that read the environment: settings, and variables of systems, shells and libraries."""


@dataclass(frozen=True)
class Import:
    """Import in a module."""

    module: str
    """Full dotted name of the imported module."""
    lazy: bool
    """Whether the import is inside a function or only for the type checker."""


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


SOURCES = {
    name_of(path): path for package in FLOORS for path in sorted((ROOT / package).rglob("*.py"))
}


@functools.cache
def tree(name: str) -> ast.Module:
    """Return the syntax tree of a module, parsed on first use and not during collection."""
    return ast.parse(SOURCES[name].read_text(encoding="utf-8"))


def walk(node: ast.AST, lazy: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        inside = (
            lazy
            or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            or (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING")
        )
        yield child, inside
        yield from walk(child, inside)


@functools.cache
def imports(name: str) -> list[Import]:
    found = []
    for node, lazy in walk(tree(name)):
        if isinstance(node, ast.Import):
            found += [Import(alias.name, lazy) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative import"
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [Import(f if f in SOURCES else str(node.module), lazy) for f in full]
    return found


def package_of(module: str) -> str:
    return module.partition(".")[0]


def room_of(module: str) -> str:
    """Return the folder or top-level file of a package that contains a module."""
    parts = module.split(".")[1:3]
    return ".".join(parts) if ".".join(parts) in ROOMS else "".join(parts[:1])


def under(*prefixes: str) -> set[str]:
    return {
        name
        for name in SOURCES
        if any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)
    }


def importers(packages: set[str], *, loading: bool = False) -> set[str]:
    """Return the modules that import these packages, anywhere or only at load time."""
    return {
        name
        for name, found in zip(SOURCES, map(imports, SOURCES), strict=True)
        for item in found
        if package_of(item.module) in packages and not (loading and item.lazy)
    }


def imported(name: str, package: str, *, loading: bool = False) -> set[str]:
    return {
        item.module
        for item in imports(name)
        if package_of(item.module) == package and not (loading and item.lazy)
    }


def reached(start: str) -> set[str]:
    """Return the modules that are loaded together with a module."""
    seen: set[str] = set()
    todo = [start]
    while todo:
        name = todo.pop()
        seen.add(name)
        loads = {item.module for item in imports(name) if not item.lazy}
        todo += (loads & SOURCES.keys()) - seen
    return seen


@pytest.mark.parametrize("package", FLOORS)
def test_every_room_has_its_floor(package: str) -> None:
    rooms = {room_of(name) for name in under(package)} - {""}
    assert rooms == set().union(*FLOORS[package])


@pytest.mark.parametrize("package", FLOORS)
def test_imports_run_down_the_house(package: str) -> None:
    """Also those inside functions; a room's own files may import each other.

    A package's own `__init__.py` may import from the ground floor alone.
    """
    floors = {"": 1} | {room: i for i, rooms in enumerate(FLOORS[package]) for room in rooms}
    upwards = [
        f"{name} → {module}"
        for name in sorted(under(package))
        for module in sorted(imported(name, package))
        if room_of(module) not in ("", room_of(name))
        and floors[room_of(module)] >= floors[room_of(name)]
    ]
    assert upwards == []


def test_no_files_import_each_other_in_a_circle() -> None:
    graph = {
        name: {item.module for item in found if item.module in SOURCES}
        for name, found in zip(SOURCES, map(imports, SOURCES), strict=True)
    }
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) == len(SOURCES)


def folders() -> list[str]:
    """Return every folder of the packages, as a dotted name."""
    return sorted({name.rpartition(".")[0] for name in SOURCES if "." in name})


def test_no_folders_import_each_other_in_a_circle() -> None:
    """Folders and files side by side do not import each other in a circle either."""
    for folder in folders():
        depth, modules = folder.count(".") + 2, under(folder)
        graph: dict[str, set[str]] = {}
        for name in modules - {folder}:
            place = ".".join(name.split(".")[:depth])
            beside = {item.module for item in imports(name)} & modules
            places = {".".join(module.split(".")[:depth]) for module in beside}
            graph.setdefault(place, set()).update(places - {place, folder})
        assert set(graphlib.TopologicalSorter(graph).static_order()) == graph.keys(), folder


def test_the_model_knows_nothing_of_the_service() -> None:
    assert importers({"service"}) <= under("service")


def test_the_core_knows_no_wire_form() -> None:
    core = under(*(f"service.{room}" for room in CORE))
    assert not importers(WEB | WIRE) & core


def test_few_rooms_know_the_web() -> None:
    rooms = (
        "api",
        "http",
        "process",
        "exchange",
        "telemetry.requests",
        "app",
        "models.state",
        "settings",
        "cli",
    )
    assert importers(WEB) <= under(*(f"service.{room}" for room in rooms))


def test_the_scheduler_knows_the_engines_contract_alone() -> None:
    contract = "service.engines.contract"
    for name in under("service.scheduler"):
        beyond = {module for module in imported(name, "service") if room_of(module) == "engines"}
        assert beyond <= {contract}, name
        assert imported(name, "model") == set(), name
    assert imported(contract, "service") == set()


def test_the_service_loads_only_what_is_free_of_torch() -> None:
    free = under(*(f"model.{room}" for room in TORCH_FREE)) | TORCH_FREE_RUNTIMES
    for name in under("service"):
        assert imported(name, "model", loading=True) <= free, name
        if name not in EXPORTING:
            assert imported(name, "model") <= free, name


def test_torch_is_the_models_alone() -> None:
    assert importers({"torch"}) <= under("model")
    assert importers({"onnx", "onnxscript"}) <= under("model.export")
    assert importers({"transformers"}) <= under("model.tokenization")
    assert CHILD_PROCESS not in {item.module for name in SOURCES for item in imports(name)}


def test_numerics_needs_numpy_alone() -> None:
    """And the types of the model's configuration, which are pydantic's."""
    packages = {"numpy", "pydantic", "model"} | sys.stdlib_module_names
    for name in under("model.numerics"):
        assert {package_of(item.module) for item in imports(name)} <= packages, name


def test_each_runtime_is_imported_in_one_place() -> None:
    """The importing file is loaded by the registry, when an artifact needs it."""
    for package, module in {
        "onnxruntime": "model.runtimes.onnx",
        "openvino": "model.runtimes.openvino",
    }.items():
        assert importers({package}) == {module}
    for module in ("model.runtimes.onnx", "model.runtimes.openvino"):
        users = {name for name in SOURCES if module in {i.module for i in imports(name)}}
        assert users <= {"model.runtimes.registry"}
        assert module not in imported("model.runtimes.registry", "model", loading=True)


def test_pictures_are_opened_in_one_room() -> None:
    assert importers({"PIL"}) == {
        "model.images.opening",
        "model.images.pixels",
        "model.images.steps",
    }


def test_traces_are_made_in_one_place_by_who_asks_for_them() -> None:
    tracing = "service.telemetry.tracing"
    assert importers({"opentelemetry"}) == {tracing}
    users = {
        name: [item.lazy for item in found if item.module == tracing]
        for name, found in zip(SOURCES, map(imports, SOURCES), strict=True)
    }
    assert {name: lazy for name, lazy in users.items() if lazy} == {"service.app": [True]}


@pytest.mark.parametrize("start", ["service.app", "service.process.server", "service.cli.serve"])
def test_nothing_heavy_is_reached_as_the_service_loads(start: str) -> None:
    seen = reached(start)
    assert not seen & importers(HEAVY, loading=True)
    assert "service.settings" in seen


def test_statistics_are_pure() -> None:
    found = {package_of(item.module) for item in imports("service.inference.attention.statistics")}
    assert found == {"__future__", "collections", "numpy"}


def test_the_client_library_is_loaded_on_demand() -> None:
    """By the commands that call a service; nothing loads `service.files.remote` before."""
    remote, models = "service.files.remote", "service.cli.models"
    assert importers({"headscope"}) == {remote, models}
    assert importers({"headscope"}, loading=True) == {remote}
    assert not [name for name in SOURCES if remote in imported(name, "service", loading=True)]


def test_httpx_is_loaded_only_where_pictures_are_fetched() -> None:
    """Beside the client library, which has it for its own requests."""
    fetching = "service.http.image_fetch"
    assert importers({"httpx"}) == {fetching}
    assert fetching not in reached("service.app")


def test_forms_are_read_in_one_place_that_loads_their_parser_on_demand() -> None:
    assert importers({"python_multipart"}) == {"service.api.wire.bodies"}
    assert importers({"python_multipart"}, loading=True) == set()


def test_only_tests_need_what_is_for_tests() -> None:
    assert importers(FOR_TESTS) == set()


def test_settings_read_the_environment() -> None:
    names = {"environ", "environb", "getenv", "getenvb", "putenv", "load_dotenv"}
    for name in SOURCES.keys() - READERS:
        for node in ast.walk(tree(name)):
            if isinstance(node, ast.Attribute):
                assert node.attr not in names, f"{name}:{node.lineno}"
            if isinstance(node, ast.ImportFrom):
                assert not names.intersection(alias.name for alias in node.names), name
