"""The dashboard's files: what is served, how it is fenced in, and that nothing points elsewhere."""

from __future__ import annotations

import re

import pytest

from service.api import native
from service.api.dashboard import FILES, MEDIA_TYPES

pytestmark = pytest.mark.anyio

SCRIPTS = sorted(name for name in FILES if name.endswith(".js"))


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


def test_what_the_page_names_is_there():
    named = re.findall(r'(?:href|src)="dashboard/([^"]+)"', text_of("index.html"))
    assert {"main.js", "style.css", "theme.js", "favicon.svg"} <= set(named) <= FILES.keys()
    for name in SCRIPTS:
        imported = re.findall(r"from '([^']+)'", text_of(name))
        assert all(path.startswith("./") and path[2:] in FILES for path in imported), name


def test_every_module_is_fetched_at_once():
    fetched = re.findall(r'rel="modulepreload" href="dashboard/([^"]+)"', text_of("index.html"))
    assert fetched == [name for name in SCRIPTS if name not in ("main.js", "theme.js")]


def test_no_file_is_left_over():
    reached, todo = set(), ["main.js", "theme.js"]
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo += re.findall(r" from '\./([^']+)';", text_of(name))
    assert reached == set(SCRIPTS)


@pytest.mark.parametrize("name", sorted(FILES))
def test_nothing_points_to_another_host(name):
    addresses = re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]+[^\s'\"]*", text_of(name))
    assert set(addresses) <= {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_strings_become_text_only(name):
    markup = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|srcdoc"
    assert not re.search(rf"{markup}|\beval\(|new Function", text_of(name))


def test_nothing_is_inline():
    page = text_of("index.html")
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*\ssrc=)", page)


def test_the_live_view_counts_the_routes_that_compute():
    listed = re.search(r"const INFERENCE = \[(.*?)\];", text_of("live.js"), re.DOTALL)
    assert listed
    paths = {route.path for router in native.ROUTERS for route in router.routes}
    assert set(re.findall(r"'([^']+)'", listed[1])) == paths
    assert {"/encode", "/attention", "/explain", "/align", "/verify"} == paths
