"""Files of the dashboard: their delivery, security headers, and imports that run downwards."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from importlib import resources

import pytest

from service.api.dashboard import MEDIA_TYPES, files
from service.engines.fake import FakeEngine
from tests.service.harness import serving
from tests.service.pictures import pictures_of

pytestmark = pytest.mark.anyio


FILES = files()


BUNDLES = ("bundle.js", "pictures.js")
SCRIPTS = sorted(name for name in FILES if name.endswith(".js") and name not in BUNDLES)
"""Modules, and the script that runs before the first paint."""
OURS = [name for name in SCRIPTS if not name.startswith("vendor/")]
LIT_HTML = {
    "LICENSE": "2b66f9390afde29edfe4314daff93f01fb182e1178053e228120178987e5db75",
    "directive-helpers.js": "f7fb1154b8f72ed2cc08b05eaeed71c99270e9ad2d48620ed24688a1af4c2b62",
    "directive.js": "3344c4f41c69cd0701d3937e8f9ef90bd845614bf6456d0b8314b7c51d415b9d",
    "directives/live.js": "b305f9066319d838db797abd5a4d871537277e25f35332702bfce4452c020ecf",
    "directives/repeat.js": "083140026ecd8665fedd15b17769f9d516252a9f1502f1e91e6967686ee82626",
    "lit-html.js": "b878e7f95dec8a9b6e9b217faca6b6a11bad82ebc44c0caa77419ed83edd81f2",
}
"""SHA-256 of the files of lit-html 3.3.3 in the npm registry."""


def text_of(name: str) -> str:
    return FILES[name].content.decode()


async def test_the_page_is_fenced_in(client):
    assert (await client.head("/")).status_code == 200
    response = await client.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    rules = response.headers["content-security-policy"].split(";")
    policy = dict(rule.strip().split(" ", 1) for rule in rules)
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' data: blob:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }


async def test_every_file(client):
    for name, file in FILES.items():
        response = await client.get(f"/dashboard/{name}")
        assert (response.status_code, response.content) == (200, file.content)
        assert response.headers["content-type"] == MEDIA_TYPES["." + name.rpartition(".")[2]]
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in response.headers["content-security-policy"]


async def test_a_known_file_is_not_sent_again(client):
    first = await client.get("/dashboard/main.js")
    assert first.headers["cache-control"] == "no-cache"
    for known in (first.headers["etag"], f'"other", W/{first.headers["etag"]}'):
        again = await client.get("/dashboard/main.js", headers={"if-none-match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
        assert "content-security-policy" in again.headers
    other = await client.get("/dashboard/main.js", headers={"if-none-match": '"other"'})
    assert other.content == first.content
    style = await client.get("/dashboard/style.css")
    assert style.headers["etag"] != first.headers["etag"]


async def test_files_are_compressed_for_who_reads_gzip(client):
    """A third of the bytes is left; httpx reads both; tags tell the two from each other."""
    found, sizes = {}, {}
    for accepted in ("gzip, deflate, br", "gzip;q=0, *", "identity"):
        headers = {"accept-encoding": accepted}
        replies = [await client.get(f"/dashboard/{name}", headers=headers) for name in FILES]
        assert [reply.content for reply in replies] == [one.content for one in FILES.values()]
        assert {reply.headers["vary"] for reply in replies} == {"accept-encoding"}
        sizes[accepted] = sum(int(reply.headers["content-length"]) for reply in replies)
        found[accepted] = replies[0]
        known = headers | {"if-none-match": replies[0].headers["etag"]}
        again = await client.get(f"/dashboard/{next(iter(FILES))}", headers=known)
        assert (again.status_code, again.headers["etag"]) == (304, replies[0].headers["etag"])
    zipped, plain, _ = found.values()
    assert zipped.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert zipped.headers["etag"] != plain.headers["etag"]
    small, *whole = sizes.values()
    assert small < 0.4 * whole[0] == 0.4 * whole[1]


@pytest.mark.parametrize(
    "path",
    [
        "__init__.py",
        "nothing.js",
        "..%2Fapp.py",
        "%2e%2e%2fapp.py",
        "%2Fetc%2Fpasswd",
        "sub/main.js",
        "main.js%00",
        f"{'0' * 31}/main.js",
        f"{'0' * 32}/main.py",
        f"{'0' * 32}/{'0' * 32}/main.js",
        "MAIN.JS",
        "",
    ],
)
async def test_nothing_else_is_there(client, path):
    response = await client.get(f"/dashboard/{path}")
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"


def named_by_the_page() -> dict[str, str]:
    """Return the digest of each file that the page names."""
    named = re.findall(r'(?:href|src)="dashboard/([0-9a-f]{32})/([^"]+)"', text_of("index.html"))
    return {name: digest for digest, name in named}


async def test_files_of_the_page_are_kept_by_browsers(client):
    """Their paths change with their contents; the page itself is asked for anew."""
    assert (await client.get("/")).headers["cache-control"] == "no-cache"
    named = named_by_the_page()
    assert named.keys() == {"favicon.svg", "theme.js", "style.css", "bundle.js"}
    for name, digest in named.items():
        assert digest == hashlib.sha256(FILES[name].content).hexdigest()[:32]
        response = await client.get(f"/dashboard/{digest}/{name}")
        assert response.content == FILES[name].content
        assert response.headers["cache-control"] == "public, max-age=31536000, immutable"


async def test_a_page_of_another_release_gets_files_that_are_not_kept(client):
    """During a rolling update the page may come from one replica, and its script from another."""
    other = await client.get(f"/dashboard/{'0' * 32}/bundle.js")
    assert (other.status_code, other.content) == (200, FILES["bundle.js"].content)
    assert other.headers["cache-control"] == "no-cache"


async def test_the_page_of_a_model_for_pictures_says_so(client, artifact):
    """It does not begin with a text, which the model would refuse."""
    assert "data-reads" not in (await client.get("/")).text
    artifacts = [artifact, pictures_of(artifact)]
    engines = [FakeEngine(one.manifest.config) for one in artifacts]
    async with serving(artifacts, engines) as both:
        pages = [(await both.get(path)).text for path in ("/", "/?model=pictures", "/?model=other")]
    marks = ['<html data-reads="pictures" lang="en">' in page for page in pages]
    assert marks == [False, True, False]
    assert text_of("pictures.html").replace(' data-reads="pictures"', "") == text_of("index.html")


def test_the_source_maps_lead_to_the_modules():
    sources = []
    for name in BUNDLES:
        assert text_of(name).endswith(f"\n//# sourceMappingURL=../{name}.map\n")
        sources += json.loads(text_of(f"{name}.map"))["sources"]
    assert sorted(sources) == sorted({*SCRIPTS} - {"theme.js"}), "each module is in one script"


async def test_the_script_for_pictures_is_kept_by_browsers(client):
    """The page's script names it by its digest, relative to its own path; the page, its styles."""
    digest = hashlib.sha256(FILES["pictures.js"].content).hexdigest()[:32]
    assert f"import('../{digest}/pictures.js')" in text_of("bundle.js")
    styles = hashlib.sha256(FILES["pictures.css"].content).hexdigest()[:32]
    assert f'content="dashboard/{styles}/pictures.css"' in text_of("index.html")
    response = await client.get(f"/dashboard/{digest}/pictures.js")
    assert response.headers["cache-control"] == "public, max-age=31536000, immutable"


def test_nothing_points_to_another_host():
    for name in FILES:
        addresses = re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]+[^\s'\"]*", text_of(name))
        assert set(addresses) <= {"http://www.w3.org/2000/svg"}, name


def test_strings_become_text_only():
    markup = r"innerHTML|outerHTML\s*=|insertAdjacentHTML|document\.write|DOMParser|srcdoc"
    for name in OURS:
        assert not re.search(rf"{markup}|\beval\(|new Function", text_of(name)), name


def test_the_library_is_the_published_one():
    """With its licence, file by file."""
    folder = resources.files("service.dashboard") / "vendor" / "lit-html"
    digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in LIT_HTML}
    assert digests == LIT_HTML
    assert "BSD 3-Clause License" in (folder / "LICENSE").read_text()
    served = {name for name in FILES if name.startswith("vendor/")}
    assert served == {f"vendor/lit-html/{name}" for name in LIT_HTML if name.endswith(".js")}


def test_nothing_is_inline():
    page = text_of("index.html")
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*\ssrc=)", page)


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
SOURCES = ("bundle.js", "pictures.js", "theme.js")
MODULES = [n for n in FILES if n.endswith(".js") and n not in SOURCES]
OUR_MODULES = [name for name in MODULES if not name.startswith("vendor/")]
LOADED = re.compile(r"""(?:from|import) ?['"](\.[^'"]+)['"]""")
TYPES = re.compile(r"""import\('(\.[^']+)'\)""")
MAX_LINES = 400


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
    users = {
        name for name in OUR_MODULES if any("vendor/" in path for path in imports(name, LOADED))
    }
    assert users == {"core/html.js"}


def test_no_module_is_long() -> None:
    for name in OUR_MODULES:
        assert len(FILES[name].content.decode().splitlines()) <= MAX_LINES, name
