"""Files of the dashboard: their delivery, security headers, and no links to other hosts."""

from __future__ import annotations

import hashlib
import posixpath
import re
from importlib import resources

import pytest

from service.api import native
from service.api.dashboard import FILES, MEDIA_TYPES

pytestmark = pytest.mark.anyio

SCRIPTS = sorted(name for name in FILES if name.endswith(".js"))
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


@pytest.mark.parametrize("name", sorted(FILES))
async def test_every_file(client, name):
    response = await client.get(f"/dashboard/{name}")
    assert response.status_code == 200
    assert response.content == FILES[name].content
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
        "MAIN.JS",
        "",
    ],
)
async def test_nothing_else_is_there(client, path):
    response = await client.get(f"/dashboard/{path}")
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"


def imports(name: str) -> set[str]:
    """Return the modules that a module imports, by their paths in the folder."""
    named = re.findall(r"""(?:from|import) ?['"](\.[^'"]+)['"]""", text_of(name))
    return {posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) for path in named}


def test_what_the_page_names_is_there():
    named = re.findall(r'(?:href|src)="dashboard/([^"]+)"', text_of("index.html"))
    assert {"main.js", "style.css", "theme.js", "favicon.svg"} <= set(named) <= FILES.keys()
    for name in SCRIPTS:
        assert imports(name) <= FILES.keys(), name


def test_every_module_is_fetched_at_once():
    fetched = re.findall(r'rel="modulepreload" href="dashboard/([^"]+)"', text_of("index.html"))
    assert fetched == [name for name in SCRIPTS if name not in ("main.js", "theme.js")]


def test_no_file_is_left_over():
    reached, todo = set(), ["main.js", "theme.js"]
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo += imports(name)
    assert reached == set(SCRIPTS)


@pytest.mark.parametrize("name", sorted(FILES))
def test_nothing_points_to_another_host(name):
    addresses = re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]+[^\s'\"]*", text_of(name))
    assert set(addresses) <= {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize("name", OURS)
def test_strings_become_text_only(name):
    markup = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|srcdoc"
    assert not re.search(rf"{markup}|\beval\(|new Function", text_of(name))


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


def test_the_live_view_counts_the_routes_that_compute():
    listed = re.search(r"const INFERENCE = \[(.*?)\];", text_of("ui/live-panel.js"), re.DOTALL)
    assert listed
    paths = {route.path for router in native.ROUTERS for route in router.routes}
    assert set(re.findall(r"'([^']+)'", listed[1])) == paths
    assert {"/encode", "/attention", "/attention/scores", "/explain", "/align", "/verify"} == paths
