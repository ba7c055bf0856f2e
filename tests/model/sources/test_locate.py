"""Resolution of names to local checkpoints, with a fake hub; caches below a home; overlays."""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import snapshot_download

from model.checkpoint import load_checkpoint
from model.errors import CheckpointError, SourceError
from model.families.registry import read_config
from model.sources.home import check_home, expanded, make_cache
from model.sources.hub.repository import Hub
from model.sources.locate import DEFAULT_MODEL, KNOWN_WEIGHTS, display_name, locate
from model.sources.overlay import overlaid
from model.tokenization.tokenizer import load_tokenizer
from tests.hub import COMMIT, NAME, StandIn
from tests.model.sentences import write_modules

NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
def nothing_embedded(monkeypatch: pytest.MonkeyPatch) -> None:
    def files(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.files", files)


def find(
    name: str,
    tmp_path: Path,
    endpoint: str = NOWHERE,
    *,
    offline: bool = False,
    revision: str | None = None,
) -> tuple[Path, list[str]]:
    said: list[str] = []
    hub = Hub(endpoint, tmp_path / "cache", offline)
    return locate(name, hub, said.append, revision), said


def fails(name: str, tmp_path: Path, endpoint: str = NOWHERE, **options: Any) -> str:
    with pytest.raises(SourceError) as failed:
        find(name, tmp_path, endpoint, **options)
    message = str(failed.value)
    assert "\n" not in message
    assert name in message
    return message


def test_a_folder_is_itself(small_checkpoint: Path, tmp_path: Path) -> None:
    assert find(str(small_checkpoint), tmp_path) == (small_checkpoint, [])


@pytest.mark.parametrize(
    "name",
    [
        *("my model", "./my model/", "my model/", "../here/my model", "my model/../my model"),
        *("~/my model", "a link"),
    ],
)
def test_ways_to_name_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    folder = tmp_path / "here" / "my model"
    folder.mkdir(parents=True)
    (tmp_path / "here" / "a link").symlink_to(folder)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "here"))
    found, said = find(name, tmp_path)
    assert found.samefile(folder)
    assert said == []
    assert display_name(name) == ("a link" if name == "a link" else "my model")


def test_a_folder_goes_before_the_hubs_model_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / NAME).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    found, said = find(NAME, tmp_path)
    assert found == Path(NAME)
    assert said == [
        f"{NAME} is a local folder, which is used instead of the hub's model of that name"
    ]
    assert find(f"./{NAME}", tmp_path)[1] == []


def test_a_folder_has_no_revision(tmp_path: Path) -> None:
    assert "has no revision v1" in fails(str(tmp_path), tmp_path, revision="v1")


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ("model.safetensors", "is a file of weights: name its folder"),
        ("model.Q4_K_M.GGUF", "is a GGUF file, which is not read: name the folder"),
        ("model.onnx", "is an ONNX graph, which is not served: name the checkpoint that it was"),
        ("config.json", "is a file: name the folder of a checkpoint"),
    ],
)
def test_a_file_is_no_folder(tmp_path: Path, file: str, part: str) -> None:
    (tmp_path / file).touch()
    assert part in fails(str(tmp_path / file), tmp_path)


def test_the_default_is_embedded(minilm_checkpoint: Path, tmp_path: Path) -> None:
    assert find(DEFAULT_MODEL, tmp_path) == (minilm_checkpoint, [])
    assert find(DEFAULT_MODEL, tmp_path, offline=True) == (minilm_checkpoint, [])


def test_another_revision_of_the_default_is_the_hubs(
    hub: StandIn, repository: Path, tmp_path: Path
) -> None:
    hub.repositories[f"{DEFAULT_MODEL}@v1"] = repository
    found, _ = find(f"{DEFAULT_MODEL}@v1", tmp_path, hub.endpoint)
    assert found.name == hub.commit_of(f"{DEFAULT_MODEL}@v1")


def test_a_name_is_downloaded_and_loads(
    hub: StandIn, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    folder, said = find(NAME, tmp_path, hub.endpoint)
    assert said[0] == f"fetching {NAME} from {hub.endpoint}"
    assert folder.is_relative_to(tmp_path / "cache" / "models--someone--small-encoder")
    config = read_config(folder)
    assert load_checkpoint(folder).config == config
    assert load_tokenizer(folder, config, lowercase=False).encode("it").ids
    weights = (folder / "model.safetensors").read_bytes()
    assert weights == (tiny_checkpoint / "model.safetensors").read_bytes()


def pool(repository: Path) -> None:
    """Write a `modules.json` into a checkpoint."""
    write_modules(repository, "Transformer", "Pooling", Pooling={"pooling_mode": "cls"})


@pytest.mark.parametrize("modules", [False, True])
def test_what_was_fetched_is_found_again_without_a_hub(
    hub: StandIn, repository: Path, tmp_path: Path, modules: bool
) -> None:
    if modules:
        pool(repository)
    folder, _ = find(NAME, tmp_path, hub.endpoint)
    for offline in (False, True):
        assert find(NAME, tmp_path, offline=offline) == (folder, [])
        assert find(f"{NAME}@main", tmp_path, offline=offline) == (folder, [])
        assert find(NAME, tmp_path, offline=offline, revision=COMMIT) == (folder, [])


def test_what_is_cached_needs_no_huggingface_hub(
    hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = find(NAME, tmp_path, hub.endpoint)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert find(NAME, tmp_path)[0] == folder


def test_what_another_tool_left_out_is_fetched(
    hub: StandIn, repository: Path, tmp_path: Path
) -> None:
    """A tool that only loads the encoder does not record whether there are modules."""
    pool(repository)
    folder, _ = find(NAME, tmp_path, hub.endpoint)
    (folder / "modules.json").unlink()
    hub.requests.clear()
    assert find(NAME, tmp_path, hub.endpoint)[0] == folder
    assert (folder / "modules.json").is_file()
    assert not hub.fetched - {"modules.json"}


def test_where_nobody_can_tell_of_modules_it_is_said(
    hub: StandIn, repository: Path, tmp_path: Path
) -> None:
    pool(repository)
    folder, _ = find(NAME, tmp_path, hub.endpoint)
    (folder / "modules.json").unlink()
    found, said = find(NAME, tmp_path, offline=True)
    assert found == folder
    assert said == [f"{folder} does not show whether there is a modules.json; assuming none"]
    found, said = find(NAME, tmp_path)
    assert found == folder
    assert said[-1].endswith(f"; taking {folder}, assuming no modules.json")


def test_offline(hub: StandIn, tmp_path: Path) -> None:
    message = fails(NAME, tmp_path, hub.endpoint, offline=True)
    assert f"does not have {NAME}, and HF_HUB_OFFLINE forbids fetching it" in message
    folder, _ = find(NAME, tmp_path, hub.endpoint)
    (folder / "model.safetensors").unlink()
    hub.requests.clear()
    message = fails(NAME, tmp_path, hub.endpoint, offline=True)
    assert f"lacks model.safetensors of {NAME}, and HF_HUB_OFFLINE forbids" in message
    assert hub.requests == []


@pytest.mark.parametrize(
    "name", [" ", "a/b/c", "-x", "../up", "a b", "x" * 100, "/no/folder", "~nobody/x"]
)
def test_what_is_no_name(tmp_path: Path, name: str) -> None:
    assert "neither a folder nor a model's name" in fails(name, tmp_path)


@pytest.mark.usefixtures("nothing_embedded")
def test_the_defaults_weights_are_known_wherever_they_come_from(
    hub: StandIn, minilm_checkpoint: Path, tmp_path: Path
) -> None:
    message = fails(DEFAULT_MODEL, tmp_path / "foreign", hub.endpoint)
    assert f"its SHA-256 is not {KNOWN_WEIGHTS[DEFAULT_MODEL]}" in message
    hub.repositories[DEFAULT_MODEL] = minilm_checkpoint
    folder, said = find(DEFAULT_MODEL, tmp_path / "genuine", hub.endpoint)
    assert said
    assert load_checkpoint(folder).config.hidden_size == 384


def test_a_cached_pickle_is_used_where_the_hub_has_no_safetensors(
    hub: StandIn, repository: Path, tmp_path: Path
) -> None:
    names = ["config.json", "tokenizer.json", "tokenizer_config.json", "pytorch_model.bin"]
    arguments: dict[str, Any] = {"endpoint": hub.endpoint, "cache_dir": tmp_path / "cache"}
    snapshot_download(NAME, allow_patterns=names, **arguments)
    folder, said = find(NAME, tmp_path, offline=True)
    assert not (folder / "model.safetensors").exists()
    assert said == [
        f"{folder} does not show whether there is a modules.json or a "
        "model.safetensors; assuming none"
    ]
    assert (find(NAME, tmp_path, hub.endpoint)[0] / "model.safetensors").is_file()
    (repository / "model.safetensors").unlink()
    snapshot_download(NAME, allow_patterns=names, **arguments | {"cache_dir": tmp_path / "b/cache"})
    folder, _ = find(NAME, tmp_path / "b", hub.endpoint)
    assert not (folder / "model.safetensors").exists()
    assert find(NAME, tmp_path / "b") == (folder, [])


@pytest.mark.usefixtures("nothing_embedded")
def test_a_default_without_safetensors(hub: StandIn, repository: Path, tmp_path: Path) -> None:
    (repository / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=re.escape(f"{DEFAULT_MODEL} holds pickled weights")):
        find(DEFAULT_MODEL, tmp_path, hub.endpoint)


def test_a_model_is_called_by_its_name() -> None:
    for name in ("organisation/model", "organisation/model@v1"):
        assert display_name(name) == "organisation/model"


def test_a_home_is_expanded_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert expanded("~/.cache") == Path("/home/somebody/.cache")
    assert expanded("~nobody-of-this-name/a") == Path("~nobody-of-this-name/a")
    assert expanded("/a/~") == Path("/a/~")


def test_a_cache_without_a_home_is_refused_with_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for check in (check_home, make_cache):
        with pytest.raises(SourceError, match="does not have: set HF_HOME to a folder"):
            check(Path("~nobody-of-this-name/.cache"), "HF_HOME")
    assert [*tmp_path.iterdir()] == []


def test_a_cache_that_cannot_be_written_is_refused_with_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match=r"file/cache cannot .*\(Not a directory\): set HF_HOME"):
        make_cache(tmp_path / "file" / "cache", "HF_HOME")
    make_cache(tmp_path / "a" / "cache", "HF_HOME")
    assert (tmp_path / "a" / "cache").is_dir()
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(SourceError, match="Permission denied"):
        make_cache(tmp_path / "a" / "cache", "HF_HOME")


def contents(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_files_are_replaced_and_added_in_any_folder(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "inner" / "deep").mkdir(parents=True)
    own = {"a": "1", "b": "2", "inner/c": "3", "inner/d": "4", "inner/deep/e": "5"}
    for name, content in own.items():
        (checkpoint / name).write_text(content)
    written = {"a": "new", "inner/c": "new", "other/f": "new"}
    folder = overlaid(checkpoint, written, tmp_path / "folders")
    assert contents(checkpoint) == own
    assert contents(folder) == {"a": "new", "b": "2", "inner/c": "new", "inner/d": "4"} | {
        "other/f": "new"
    }  # rglob does not follow the link to inner/deep
    assert (folder / "inner" / "deep" / "e").read_text() == "5"
    assert overlaid(checkpoint, written, tmp_path / "folders") == folder
    assert overlaid(checkpoint, {"a": "newer"}, tmp_path / "folders") != folder
    assert len(list((tmp_path / "folders").iterdir())) == 2
