"""Names to local checkpoints, against a stand-in for a Hugging Face hub on this machine."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import shutil
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from model.checkpoint import load_checkpoint
from model.errors import SourceError
from model.families.registry import read_config
from model.sources import DEFAULT_MODEL, KNOWN_WEIGHTS, display_name, locate
from model.tokenizer import load_tokenizer

NAME = "someone/small-encoder"
COMMIT = hashlib.sha1(b"a commit").hexdigest()


class Hub(ThreadingHTTPServer):
    """Speaks what `snapshot_download` needs; remembers which files were asked for."""

    daemon_threads = True

    def __init__(self, repositories: dict[str, Path]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories = repositories
        self.fetched: set[str] = set()
        self.failure = ""
        """A way to fail: "broken" answers 500, "cut" stops in the middle of a file, "html" is no
        hub."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def do_HEAD(self) -> None:
        self.do_GET(head=True)

    def do_GET(self, *, head: bool = False) -> None:
        path = urlsplit(self.path).path
        if self.server.failure == "broken":
            self.reply(b"out of order", status=500)
            return
        if self.server.failure == "html":
            self.reply(b"<html>no hub here</html>", {"Content-Type": "text/html"})
            return
        for name, folder in self.server.repositories.items():
            if path == f"/api/models/{name}/revision/main":
                self.reply(json.dumps({"id": name, "sha": COMMIT}).encode())
                return
            if path == f"/api/models/{name}/tree/{COMMIT}":
                self.reply(json.dumps(list(tree(folder))).encode())
                return
            if path.startswith(f"/{name}/resolve/{COMMIT}/"):
                self.file(folder, path.partition(f"{COMMIT}/")[2], head=head)
                return
        self.reply(b"{}", {"X-Error-Code": "RepoNotFound"}, status=404)

    def file(self, folder: Path, name: str, *, head: bool) -> None:
        content = (folder / name).read_bytes()
        headers = {
            "X-Repo-Commit": COMMIT,
            "ETag": f'"{hashlib.sha1(content).hexdigest()}"',
            "Content-Length": str(len(content)),
        }
        if not head:
            self.server.fetched.add(name)
        if self.server.failure == "cut" and name.endswith(".safetensors"):
            content = content[: len(content) // 2]
            self.close_connection = True
        self.reply(b"" if head else content, headers)

    def reply(self, body: bytes, headers: dict[str, str] | None = None, status: int = 200) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


def tree(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield {
                "type": "file",
                "path": path.relative_to(folder).as_posix(),
                "size": path.stat().st_size,
                "oid": hashlib.sha1(path.read_bytes()).hexdigest(),
            }


@pytest.fixture
def repository(small_checkpoint: Path, tmp_path: Path) -> Path:
    """The small checkpoint, among files that nobody needs."""
    folder = Path(shutil.copytree(small_checkpoint, tmp_path / "repository"))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    (folder / "vocab.txt").write_text("[PAD]\n")
    for unwanted in ("pytorch_model.bin", "README.md", "onnx/model.onnx", "setup.py", "w.pt"):
        (folder / unwanted).parent.mkdir(exist_ok=True)
        (folder / unwanted).write_bytes(b"not to be fetched")
    return folder


@pytest.fixture
def hub(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("NO_PROXY", "*")
    with Hub({NAME: repository, DEFAULT_MODEL: repository}) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def nothing_embedded(monkeypatch: pytest.MonkeyPatch) -> None:
    def files(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.files", files)


def find(name: str, tmp_path: Path, endpoint: str = "http://127.0.0.1:1") -> tuple[Path, list[str]]:
    said: list[str] = []
    return locate(name, tmp_path / "cache", endpoint, said.append), said


def fails(name: str, tmp_path: Path, endpoint: str) -> str:
    with pytest.raises(SourceError) as failed:
        find(name, tmp_path, endpoint)
    message = str(failed.value)
    assert "\n" not in message
    assert name in message
    return message


def test_a_folder_is_itself(small_checkpoint: Path, tmp_path: Path) -> None:
    assert find(str(small_checkpoint), tmp_path) == (small_checkpoint, [])


def test_the_default_is_embedded(minilm_checkpoint: Path, tmp_path: Path) -> None:
    assert find(DEFAULT_MODEL, tmp_path) == (minilm_checkpoint, [])


def test_a_name_is_downloaded_and_loads(hub: Hub, tmp_path: Path, small_checkpoint: Path) -> None:
    folder, said = find(NAME, tmp_path, hub.endpoint)
    assert said == [f"fetching {NAME} from {hub.endpoint}"]
    assert folder.is_relative_to(tmp_path / "cache" / "hub")
    config = read_config(folder)
    assert load_checkpoint(folder).config == config
    assert load_tokenizer(folder, config, lowercase=False).encode("it").ids
    weights = (folder / "model.safetensors").read_bytes()
    assert weights == (small_checkpoint / "model.safetensors").read_bytes()


def test_only_what_is_needed_is_fetched(hub: Hub, tmp_path: Path) -> None:
    folder, _ = find(NAME, tmp_path, hub.endpoint)
    wanted = {
        "1_Pooling/config.json",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    }
    assert hub.fetched == wanted
    assert {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()} == wanted


def test_what_was_fetched_is_found_again_without_a_hub(hub: Hub, tmp_path: Path) -> None:
    folder, _ = find(NAME, tmp_path, hub.endpoint)
    hub.fetched.clear()
    assert find(NAME, tmp_path, hub.endpoint)[0] == folder
    assert hub.fetched == set()
    hub.failure = "broken"
    assert find(NAME, tmp_path, hub.endpoint)[0] == folder


def test_an_unknown_name(hub: Hub, tmp_path: Path) -> None:
    message = fails("someone/else", tmp_path, hub.endpoint)
    assert message == f"{hub.endpoint} has no model someone/else, or it needs a token"


@pytest.mark.parametrize("name", [" ", "a/b/c", "-x", "../up", "a b", "x" * 100, "/no/folder"])
def test_what_is_no_name(hub: Hub, tmp_path: Path, name: str) -> None:
    assert "neither a folder nor a model's name" in fails(name, tmp_path, hub.endpoint)


def test_a_hub_out_of_reach(hub: Hub, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
    assert f"cannot be fetched from {endpoint}" in fails(NAME, tmp_path, endpoint)


@pytest.mark.parametrize("failure", ["broken", "cut", "html"])
def test_a_hub_that_fails(
    hub: Hub, tmp_path: Path, failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)  # between huggingface_hub's own attempts
    hub.failure = failure
    assert f"cannot be fetched from {hub.endpoint}" in fails(NAME, tmp_path, hub.endpoint)


def test_offline(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "cannot be fetched" in fails(NAME, tmp_path, hub.endpoint)


@pytest.mark.usefixtures("nothing_embedded")
def test_the_defaults_weights_are_known_wherever_they_come_from(
    hub: Hub, minilm_checkpoint: Path, tmp_path: Path
) -> None:
    message = fails(DEFAULT_MODEL, tmp_path / "foreign", hub.endpoint)
    assert f"its SHA-256 is not {KNOWN_WEIGHTS[DEFAULT_MODEL]}" in message
    hub.repositories[DEFAULT_MODEL] = minilm_checkpoint
    folder, said = find(DEFAULT_MODEL, tmp_path / "genuine", hub.endpoint)
    assert said
    assert load_checkpoint(folder).config.hidden_size == 384


@pytest.mark.usefixtures("nothing_embedded")
def test_a_default_without_safetensors(hub: Hub, repository: Path, tmp_path: Path) -> None:
    (repository / "model.safetensors").unlink()
    assert "is not sentence-transformers/" in fails(DEFAULT_MODEL, tmp_path, hub.endpoint)


def test_a_damaged_package(minilm_checkpoint: Path, tmp_path: Path, monkeypatch: Any) -> None:
    copy = Path(shutil.copytree(minilm_checkpoint, tmp_path / minilm_checkpoint.name))
    with (copy / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")
    monkeypatch.setattr("model.sources._embedded", lambda: copy)
    assert "SHA-256" in fails(DEFAULT_MODEL, tmp_path, "http://127.0.0.1:1")


def test_a_folder_is_called_by_its_own_name(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "my-model").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in (str(tmp_path / "my-model"), "my-model", "./my-model/", "my-model/../my-model"):
        assert display_name(name) == "my-model"
    assert display_name("organisation/model") == "organisation/model"
