"""Modules as one script: statements, order, errors, and the source map, decoded here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import resources

import pytest

from service.api.dashboard import files
from service.dashboard.bundle import BundleError, bundle

FILES = files()

DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
COMMENT = re.compile(r"^\s*(?:/?\*|//)")
"""Line of a comment."""
STATEMENT = re.compile(r"(?:^|[;}])(?:import|export)\b|^  \w+,$|^\} from |sourceMappingURL")
"""Line that belongs to an import or export."""
MODULES = {
    "main.js": """/** Runs last; {import('./core/a.js')} is a comment. */
import {
  a,
  b as c,
} from './core/a.js';
import './side.js';

// Two words,
/**
 * and a description.
 */
log(a, c); // of nothing
""",
    "side.js": "log('side');\n",
    "core/a.js": """import{x as b}from"../lib/x.js";import{y}from"../lib/x.js";
export const a = 1;
export {
  b,
  y as why,
};
export async function* walk() {}
export class Thing {}
""",
    "lib/x.js": (
        "/** @license A */\nconst i=1,j=2;export{i as x,j as y};\n//# sourceMappingURL=x.js.map\n"
    ),
    "unused.js": "import './nowhere.js';\n",
}
SCRIPT = """const module_0 = (() => { // lib/x.js
/** @license A */
const i=1,j=2;

return {x: i, y: j};
})();
const module_1 = (() => { // core/a.js
const { x: b } = module_0;const { y } = module_0;
const a = 1;




async function* walk() {}
class Thing {}
return {b, why: y, a, walk, Thing};
})();
const module_2 = (() => { // side.js
log('side');
return {};
})();
const module_3 = (() => { // main.js

const { a, b: c } = module_1;









log(a, c); // of nothing
return {};
})();
//# sourceMappingURL=main.map
"""


def test_statements_and_order() -> None:
    """Modules run in the order in which browsers run them, each once."""
    assert bundle(MODULES, "main.js", "main.map").script == SCRIPT


def numbers(segment: str) -> list[int]:
    """Decode the base64 VLQ numbers of a segment (ECMA-426)."""
    values, value, shift = [], 0, 0
    for digit in map(DIGITS.index, segment):
        value |= (digit & 31) << shift
        shift += 5
        if not digit & 32:
            values.append(-(value >> 1) if value & 1 else value >> 1)
            value = shift = 0
    return values


def mapped(source_map: str) -> Iterator[tuple[int, str, int]]:
    """Yield each line of the script that has a source, with the source's path and line."""
    decoded = json.loads(source_map)
    assert (decoded["version"], decoded["names"]) == (3, [])
    source = line = 0
    for place, segment in enumerate(decoded["mappings"].split(";")):
        if segment:
            column, next_source, next_line, source_column = numbers(segment)
            assert (column, source_column) == (0, 0)
            source, line = source + next_source, line + next_line
            yield place, decoded["sources"][source], line


WITH_PART = {
    "main.js": "import { a } from './a.js';\nconst b = (await import('./part.js')).b;\n",
    "a.js": "export const a = 1;\n",
    "part.js": "import { a } from './a.js';\nimport { c } from './own.js';\nexport const b = a;\n",
    "own.js": "import './a.js';\nexport const c = 2;\n",
}
PART = """export const load = ({'a.js': module_0}) => {
const module_1 = (() => { // own.js

const c = 2;
return {c};
})();
const module_2 = (() => { // part.js
const { a } = module_0;
const { c } = module_1;
const b = a;
return {b};
})();
return module_2;
};
//# sourceMappingURL=part.map
"""


def test_a_part_takes_what_it_shares_from_the_first_script() -> None:
    """No module runs twice: the part gets it from the script that loads the part."""
    part = bundle(WITH_PART, "part.js", "part.map", first="main.js")
    assert part.script == PART
    assert [source for _, source, _ in mapped(part.source_map)] == ["own.js"] * 2 + ["part.js"] * 3
    script = bundle(WITH_PART, "main.js", "main.map", {"part.js": ("../0/part.js", part)}).script
    loads = "const b = ((await import('../0/part.js')).load({'a.js': module_0})).b;"
    assert loads in script.splitlines()
    with pytest.raises(BundleError, match=r"main\.js loads part\.js, which is not a part"):
        bundle(WITH_PART, "main.js", "main.map")


@pytest.mark.parametrize("bundled", ["bundle.js", "pictures.js"])
def test_every_line_leads_to_its_source(bundled: str) -> None:
    """In the dashboard itself: lines are those of modules, but for imports, exports, comments."""
    script = FILES[bundled].content.decode().splitlines()
    sources = {name: FILES[name].content.decode().splitlines() for name in FILES}
    lines: dict[str, list[int]] = {}
    for place, name, line in mapped(FILES[f"{bundled}.map"].content.decode()):
        lines.setdefault(name, []).append(line)
        source = sources[name][line]
        left_out = STATEMENT.search(source) or (COMMENT.match(source) and not script[place])
        left_out = left_out or "await import(" in source
        assert script[place] == source or left_out, f"{name}:{line + 1}"
    assert lines == {name: list(range(len(sources[name]))) for name in lines}


@pytest.mark.parametrize(
    "statement",
    [
        "export default 1;",
        "export let a = 1;",
        "export * from './side.js';",
        "import * as side from './side.js';",
        "import side from './side.js';",
        "import { a } from 'lit';",
        "const here = import.meta.url;",
    ],
)
def test_other_statements_are_refused(statement: str) -> None:
    with pytest.raises(BundleError, match=r"main\.js: .* cannot be bundled"):
        bundle({"main.js": statement, "side.js": ""}, "main.js", "main.map")


def test_a_circle_is_refused() -> None:
    circle = {"main.js": "import './a.js';", "a.js": "import { b } from './main.js';"}
    with pytest.raises(BundleError, match=r"a\.js imports main\.js in a circle"):
        bundle(circle, "main.js", "main.map")


def test_a_missing_module_is_named() -> None:
    with pytest.raises(BundleError, match=r"main\.js imports a\.js, which does not exist"):
        bundle({"main.js": "import './a.js';"}, "main.js", "main.map")


def test_the_folder_has_the_modules_of_the_bundle() -> None:
    folder = resources.files("service.dashboard")
    names = json.loads(FILES["bundle.js.map"].content)["sources"]
    assert all((folder / name).is_file() for name in names)
