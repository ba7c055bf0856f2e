"""Imports of the dashboard's modules run downwards; the bundler refuses circles."""

from __future__ import annotations

import posixpath
import re

from service.api.dashboard import files

FILES = files()

FLOORS = (
    {"vendor"},
    {"core"},
    {"api", "draw"},
    {"elements"},
    {"ui"},
    {"views"},
    {"pictures"},
    {"main.js"},
)
"""Folders of the dashboard, from the ground up; `theme.js` is a script of its own."""
SCRIPTS = ("bundle.js", "pictures.js", "theme.js")
MODULES = [n for n in FILES if n.endswith(".js") and n not in SCRIPTS]
OURS = [name for name in MODULES if not name.startswith("vendor/")]
LOADED = re.compile(r"""(?:from|import) ?['"](\.[^'"]+)['"]""")
TYPES = re.compile(r"""import\('(\.[^']+)'\)""")
MAX_LINES = 300


def imports(name: str, *patterns: re.Pattern[str]) -> set[str]:
    """Return the modules that a module names in imports, by their paths in the folder."""
    text = FILES[name].content.decode()
    paths = {path for pattern in patterns for path in pattern.findall(text)}
    return {posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) for path in paths}


def folder_of(name: str) -> str:
    return name.partition("/")[0]


def floor_of(name: str) -> int:
    (floor,) = (i for i, folders in enumerate(FLOORS) if folder_of(name) in folders)
    return floor


def test_imports_run_down() -> None:
    """Imports of types do too; a folder's own files may import each other, but for views."""
    for name in MODULES:
        for target in imports(name, LOADED, TYPES):
            if folder_of(target) == folder_of(name) != "views":
                continue
            assert floor_of(target) < floor_of(name), f"{name} imports {target}"


def test_lit_html_is_imported_in_one_place() -> None:
    users = {name for name in OURS if any("vendor/" in path for path in imports(name, LOADED))}
    assert users == {"core/html.js"}


def test_no_module_is_long() -> None:
    for name in OURS:
        assert len(FILES[name].content.decode().splitlines()) <= MAX_LINES, name
