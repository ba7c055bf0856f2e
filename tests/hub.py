"""Stand-in for a Hugging Face hub on this machine, with the failures of real hubs."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

NAME = "someone/small-encoder"
COMMIT = hashlib.sha1(b"a commit").hexdigest()
STATUSES = {
    "unauthorised": (401, {}),
    "invalid token": (401, {"X-Error-Message": "Invalid credentials in Authorization header"}),
    "forbidden": (403, {"X-Error-Message": "no"}),
    "gated": (403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"}),
    "gated, no token": (401, {"X-Error-Code": "GatedRepo", "X-Error-Message": "restricted"}),
    "not found": (404, {"X-Error-Code": "RepoNotFound"}),
    "too many": (429, {}),
    "broken": (500, {}),
    "unavailable": (503, {}),
}
"""Failures by status, with the public hub's replies."""


class StandIn(ThreadingHTTPServer):
    """Server of the routes that `huggingface_hub` needs, with a record of its requests."""

    daemon_threads = True

    def __init__(self, repositories: dict[str, Path]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories = repositories
        """Folders by name, or by `name@revision` for a revision other than `main`."""
        self.requests: list[tuple[str, str, str | None]] = []
        """Method, path and `Range` of every request."""
        self.tokens: set[str | None] = set()
        """Values of the requests' `Authorization`."""
        self.failure = ""
        """One of `STATUSES`; "cut" stops in the middle of a file each time, "cut once" the first
        time; "html" is no hub; "silent" never answers."""
        self.elsewhere = ""
        """Base URL of another host to which weights are redirected, as large files are."""
        self.claimed = 0
        """Bytes by which the announced size of redirected weights exceeds the true size."""
        self.woken = threading.Event()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def fetched(self) -> set[str]:
        """Return the files whose content was requested."""
        paths = [path for method, path, _ in self.requests if method == "GET"]
        return {path.split("/", 5)[5] for path in paths if path.split("/")[3:4] == ["resolve"]}

    def commit_of(self, name: str) -> str:
        revision = name.partition("@")[2]
        return hashlib.sha1(revision.encode()).hexdigest() if revision else COMMIT


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StandIn

    def do_HEAD(self) -> None:
        self.do_GET(head=True)

    def do_GET(self, *, head: bool = False) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append((self.command, path, self.headers["Range"]))
        self.server.tokens.add(self.headers["Authorization"])
        failure = self.server.failure
        if failure in STATUSES:
            status, headers = STATUSES[failure]
            self.reply(b"{}", headers, status)
        elif failure == "html":
            self.reply(b"<html>no hub here</html>", {"Content-Type": "text/html"})
        elif failure == "silent":
            self.server.woken.wait(60)
        else:
            self.answer(path, head=head)

    def answer(self, path: str, *, head: bool) -> None:
        known = False
        for key, folder in self.server.repositories.items():
            name, _, revision = key.partition("@")
            commit = self.server.commit_of(key)
            known = known or path.startswith((f"/api/models/{name}", f"/{name}/"))
            revisions = {commit, revision or "main"}
            if path in {f"/api/models/{name}/revision/{r}" for r in revisions} or (
                path == f"/api/models/{name}" and not revision
            ):
                self.reply(json.dumps(info(name, commit, folder)).encode())
                return
            if path in {f"/api/models/{name}/tree/{r}" for r in revisions}:
                self.reply(json.dumps(list(tree(folder))).encode())
                return
            start = next(
                (s for r in revisions if path.startswith(s := f"/{name}/resolve/{r}/")), ""
            )
            if start:
                self.file(folder, path.removeprefix(start), commit, head=head)
                return
            if path.startswith(tuple(f"/api/models/{name}/tree/{r}/" for r in revisions)):
                self.reply(b"{}", {"X-Error-Code": "EntryNotFound"}, status=404)  # of a folder
                return
        code = "RevisionNotFound" if known else "RepoNotFound"
        self.reply(b"{}", {"X-Error-Code": code}, status=404)

    def file(self, folder: Path, name: str, commit: str, *, head: bool) -> None:
        if not (folder / name).is_file():
            self.reply(b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}, 404)
            return
        content = (folder / name).read_bytes()
        headers = {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha1(content).hexdigest()}"'}
        if self.server.elsewhere and name.endswith(".safetensors"):
            size = len(content) + self.server.claimed
            linked = {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": str(size)}
            self.reply(b"", headers | linked | {"Location": self.server.elsewhere + self.path}, 302)
            return
        status, start = 200, 0
        if (asked := self.headers["Range"]) is not None:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            status = 206
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        content = content[start:]
        headers["Content-Length"] = str(len(content))
        if not head and name.endswith(".safetensors") and self.server.failure.startswith("cut"):
            once = self.server.failure == "cut once"
            self.server.failure = "" if once else self.server.failure
            content = content[: len(content) // 2] if once else b""
            self.close_connection = True
        self.reply(b"" if head else content, headers, status)

    def reply(self, body: bytes, headers: dict[str, str] | None = None, status: int = 200) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def files(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path.read_bytes()


def info(name: str, commit: str, folder: Path) -> dict[str, Any]:
    siblings = [{"rfilename": path, "size": len(content)} for path, content in files(folder)]
    return {"id": name, "sha": commit, "siblings": siblings}


def tree(folder: Path) -> Iterator[dict[str, Any]]:
    for path, content in files(folder):
        oid = hashlib.sha1(content).hexdigest()
        yield {"type": "file", "path": path, "size": len(content), "oid": oid}


@contextmanager
def running(repositories: dict[str, Path]) -> Iterator[StandIn]:
    """Run a stand-in that serves these folders."""
    with StandIn(repositories) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.woken.set()
        server.shutdown()
        thread.join()
