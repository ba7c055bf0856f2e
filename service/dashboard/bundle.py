"""The dashboard's modules as one script, with a source map.

Each module becomes a function that runs once and returns the module's exports:

    const module_3 = (() => { // core/memo.js
    const { a, b: c } = module_1;        import { a, b as c } from './numbers.js';
    function memo() {}                   export function memo() {}
    return {memo};
    })();

Every line of a module stays one line, so that the source map has one entry a line. Comments on
lines of their own become empty lines, except for licences. A statement that this form cannot
express is an error: `export default`, `export let`, `import * as`, a circle.

A module that `await import('./part.js')` names, with what only it imports, is a part: a script of
its own, which is loaded when it is needed. Its one export is a function that takes the modules that
it shares with the first script, by their paths, and returns the exports of `part.js`.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

IMPORT = re.compile(
    r"""import(?<![^\n;]import) ?(?:\{(?P<names>[^}]*)\} ?from ?)?(['"])(?P<path>\.[^'"]+)\2;?"""
)
EXPORT_LIST = re.compile(r"export(?<![^\n;}]export) ?\{(?P<names>[^}]*)\};?")
EXPORT = re.compile(
    r"export(?<![^\n]export) (?=(?:const|class|(?:async )?function\*?) (?P<name>\w+))"
)
PART = re.compile(r"await import\('(?P<path>\.[^']+)'\)")
LEFT_OVER = re.compile(r"^(?:import|export)\b.*|\bimport\.meta\b", re.MULTILINE)
COMMENT = re.compile(
    r"^[ \t]*(?:/\*\*(?:(?!\*/|@license).)*\*/|//[^#\n][^\n]*)[ \t]*$", re.MULTILINE | re.DOTALL
)
"""Comments that fill their lines."""
MAP_COMMENT = re.compile(r"//# sourceMappingURL=.*")
VLQ_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
"""Digits of the base64 VLQ numbers in source maps (ECMA-426)."""


class BundleError(ValueError):
    """Module that cannot be bundled."""


@dataclass(frozen=True)
class Bundle:
    """Script and its source map, whose sources are the paths of the modules."""

    script: str
    source_map: str
    shared: tuple[str, ...]
    """Paths of the modules that a part takes from the first script."""


def bundle(
    modules: Mapping[str, str],
    entry: str,
    map_url: str,
    parts: Mapping[str, tuple[str, Bundle]] | None = None,
    first: str = "",
) -> Bundle:
    """Return a module and everything that it imports as one script, or as a part.

    Args:
        modules: Text of each module by its path.
        entry: Path of the module that runs last.
        map_url: URL of the source map, relative to the script.
        parts: URL of each part, relative to the script, and the part, by the path of its entry.
        first: Entry of the first script, whose modules a part does not repeat; empty for it itself.

    Raises:
        BundleError: A module is missing, is in a circle, or has a statement that cannot be bundled.

    """
    order, known = _order_of(modules, entry), _order_of(modules, first) if first else []
    own = [name for name in order if name not in known]
    imported = {
        _resolve(name, one["path"]) for name in own for one in IMPORT.finditer(modules[name])
    }
    shared = tuple(name for name in order if name in imported and name in known)
    numbers = {name: number for number, name in enumerate((*shared, *own))}
    loads = {
        name: f"(await import('{url}')).load({_by_path(part.shared, numbers)})"
        for name, (url, part) in (parts or {}).items()
    }
    script, mappings = _functions(own, numbers, modules, loads)
    if first:
        begin = f"export const load = ({_by_path(shared, numbers)}) => {{"
        script = [begin, *script, f"return module_{numbers[entry]};", "};"]
        mappings = ["", *mappings]
    script.append(f"//# sourceMappingURL={map_url}\n")
    return Bundle("\n".join(script), _source_map(own, mappings), shared)


def _order_of(modules: Mapping[str, str], entry: str) -> list[str]:
    """Return the paths of a module and everything that it imports, as browsers run them."""
    order: list[str] = []
    _append_in_order(order, (entry,), modules)
    return order


def _by_path(shared: Sequence[str], numbers: Mapping[str, int]) -> str:
    """Return an object, or the pattern of one, of modules by their paths."""
    return "{" + ", ".join(f"'{name}': module_{numbers[name]}" for name in shared) + "}"


def _functions(
    names: Sequence[str],
    numbers: Mapping[str, int],
    modules: Mapping[str, str],
    loads: Mapping[str, str],
) -> tuple[list[str], list[str]]:
    """Return the lines of modules as functions, and the source map's segment of each line."""
    script: list[str] = []
    mappings: list[str] = []
    source_before = line_before = 0
    for place, name in enumerate(names):
        lines, exports = _function_body(name, modules[name], numbers, loads)
        script += [f"const module_{numbers[name]} = (() => {{ // {name}", *lines]
        script += [f"return {{{', '.join(exports)}}};", "})();"]
        mappings.append("")
        for line in range(len(lines)):
            mappings.append(f"A{_vlq(place - source_before)}{_vlq(line - line_before)}A")
            source_before, line_before = place, line
        mappings += ["", ""]
    return script, mappings


def _source_map(sources: Sequence[str], mappings: Sequence[str]) -> str:
    """Return a source map (ECMA-426)."""
    found = {"version": 3, "sources": sources, "names": [], "mappings": ";".join(mappings)}
    return json.dumps(found)


def _append_in_order(order: list[str], trail: tuple[str, ...], modules: Mapping[str, str]) -> None:
    """Append the last module of a trail of imports, after its own imports, as browsers run them."""
    name = trail[-1]
    if name in order:
        return
    if name not in modules:
        raise BundleError(f"{trail[-2]} imports {name}, which does not exist")
    for found in IMPORT.finditer(modules[name]):
        target = _resolve(name, found["path"])
        if target in trail:
            raise BundleError(f"{name} imports {target} in a circle")
        _append_in_order(order, (*trail, target), modules)
    order.append(name)


def _resolve(name: str, path: str) -> str:
    """Return the path of an imported module from the path that the import names."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), path))


def _function_body(
    name: str, text: str, numbers: Mapping[str, int], loads: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """Return the lines of a module without imports and exports, and the fields of its exports."""
    exports: list[str] = []

    def imported(found: re.Match[str]) -> str:
        breaks = "\n" * found[0].count("\n")
        if found["names"] is None:
            return breaks
        fields = ", ".join(": ".join(pair) for pair in _renamings(found["names"]))
        return f"const {{ {fields} }} = module_{numbers[_resolve(name, found['path'])]};{breaks}"

    def listed(found: re.Match[str]) -> str:
        exports.extend(": ".join(reversed(pair)) for pair in _renamings(found["names"]))
        return "\n" * found[0].count("\n")

    def declared(found: re.Match[str]) -> str:
        exports.append(found["name"])
        return ""

    def loaded(found: re.Match[str]) -> str:
        target = _resolve(name, found["path"])
        if target not in loads:
            raise BundleError(f"{name} loads {target}, which is not a part")
        return loads[target]

    text = PART.sub(loaded, text)
    text = EXPORT.sub(declared, EXPORT_LIST.sub(listed, IMPORT.sub(imported, text)))
    left_over = LEFT_OVER.search(text)
    if left_over:
        raise BundleError(f"{name}: {left_over[0]!r} cannot be bundled")
    text = COMMENT.sub(lambda found: "\n" * found[0].count("\n"), MAP_COMMENT.sub("", text))
    return text.splitlines(), exports


def _renamings(names: str) -> list[list[str]]:
    """Return the parts of each `a` or `a as b` of an import or export."""
    return [part.split(" as ") for part in (name.strip() for name in names.split(",")) if part]


def _vlq(value: int) -> str:
    """Return a number in base64 VLQ."""
    rest, digits = abs(value) << 1 | (value < 0), ""
    while True:
        digit, rest = rest & 31, rest >> 5
        digits += VLQ_DIGITS[digit | (32 if rest else 0)]
        if not rest:
            return digits
