"""Downloads from a fake hub on this machine."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from huggingface_hub import snapshot_download

from model.errors import CheckpointError, ConfigError, ModelError, SourceError, UnreachableError
from model.sources.files import HYBRID_HEADS
from model.sources.hub.download import download
from model.sources.hub.repository import Hub, Repository, Snapshot, find_cached
from tests.hub import COMMIT, NAME, STATUSES, StandIn, running
from tests.model.checkpoints import edit_json
from tests.model.pickles import pickle_weights
from tests.model.refusals import refused
from tests.model.sentences import write_modules
from tests.model.static_checkpoints import write_model2vec

PLAIN = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
TOKEN = "hf_" + "x" * 30


def fetch(hub: StandIn, tmp_path: Path, revision: str | None = None) -> tuple[Path, list[str]]:
    said: list[str] = []
    there = Hub(hub.endpoint, tmp_path / "cache")
    return download(there, Repository(NAME, revision), said.append), said


def fails(hub: StandIn, tmp_path: Path, kind: type[ModelError], revision: str | None = None) -> str:
    return refused(kind, "", fetch, hub, tmp_path, revision)


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_only_what_is_needed_is_asked_for(hub: StandIn, tmp_path: Path) -> None:
    folder, said = fetch(hub, tmp_path)
    assert hub.fetched == PLAIN
    assert files(folder) == PLAIN
    assert folder == tmp_path / "cache" / "models--someone--small-encoder" / "snapshots" / COMMIT
    size = (folder / "model.safetensors").stat().st_size / 1e6
    assert said == [f"fetching model.safetensors, {size:.1f} MB"]


def test_a_static_embedding_has_no_config(hub: StandIn, repository: Path, tmp_path: Path) -> None:
    for path in [path for path in repository.iterdir() if path.is_file()]:
        path.unlink()
    static = write_model2vec(tmp_path / "static")
    (static / "config.json").unlink()
    for path in static.iterdir():
        path.rename(repository / path.name)
    folder, _ = fetch(hub, tmp_path)
    assert files(folder) == {"model.safetensors", "modules.json", "tokenizer.json"}
    found = find_cached(tmp_path / "cache", Repository(NAME))
    assert found is not None
    assert not found.lacks


def test_the_chat_template_of_a_reranker(hub: StandIn, repository: Path, tmp_path: Path) -> None:
    (repository / "chat_template.jinja").write_text("{{ messages }}")
    fetch(hub, tmp_path)
    assert hub.fetched == PLAIN | {"chat_template.jinja"}


def test_other_tools_find_what_was_fetched(hub: StandIn, tmp_path: Path) -> None:
    folder, _ = fetch(hub, tmp_path)
    theirs = snapshot_download(
        NAME, cache_dir=tmp_path / "cache", local_files_only=True, allow_patterns=sorted(PLAIN)
    )
    assert theirs == str(folder)
    found = find_cached(tmp_path / "cache", Repository(NAME))
    assert found == Snapshot(folder, [], [])


def test_the_folders_that_the_modules_name(hub: StandIn, repository: Path, tmp_path: Path) -> None:
    (repository / "0_Transformer").mkdir()
    for name in ("config.json", "model.safetensors"):
        (repository / name).rename(repository / "0_Transformer" / name)
    kinds = ("Transformer", "Pooling", "Dense", "Normalize")
    configs = {
        "Pooling": {"word_embedding_dimension": 12},
        "Dense": {"in_features": 12, "out_features": 5},
    }
    write_modules(repository, *kinds, first="0_Transformer", **configs)
    for name in ("2_Dense/model.safetensors", "2_Dense/pytorch_model.bin"):
        (repository / name).write_bytes(b"weights")
    fetch(hub, tmp_path)
    assert hub.fetched == {
        *("0_Transformer/config.json", "0_Transformer/model.safetensors"),
        *("1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"),
        *("modules.json", "tokenizer.json", "tokenizer_config.json"),
    }


def test_the_shards_that_the_index_names(hub: StandIn, repository: Path, tmp_path: Path) -> None:
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    weights = (repository / "model.safetensors").read_bytes()
    (repository / "model.safetensors").unlink()
    for shard in [*shards, "model-00001-of-00009.safetensors"]:
        (repository / shard).write_bytes(weights + shard.encode())
    index = {"weight_map": {"a": shards[0], "b": shards[1], "c": shards[0]}}
    (repository / "model.safetensors.index.json").write_text(json.dumps(index))
    fetch(hub, tmp_path)
    names = PLAIN - {"model.safetensors"} | {*shards, "model.safetensors.index.json"}
    assert hub.fetched == names


def test_a_cut_connection_goes_on_where_it_broke(
    hub: StandIn, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It resumes after the last complete chunk."""
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 512)
    hub.failure = "cut once"
    folder, _ = fetch(hub, tmp_path)
    weights = (repository / "model.safetensors").read_bytes()
    assert (folder / "model.safetensors").read_bytes() == weights
    asked = [r for method, path, r in hub.requests if method == "GET" and "safetensors" in path]
    assert asked == [None, f"bytes={len(weights) // 2 // 512 * 512}-"]


def test_a_second_attempt_keeps_the_files_of_the_first(hub: StandIn, tmp_path: Path) -> None:
    hub.failure = "cut"
    fails(hub, tmp_path, UnreachableError)
    hub.requests.clear()
    hub.failure = ""
    fetch(hub, tmp_path)
    assert hub.fetched == {"model.safetensors"}


def test_a_revision(hub: StandIn, repository: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for name in PLAIN:
        (other / name).write_bytes((repository / name).read_bytes())
    (other / "tokenizer_config.json").write_text('{"model_max_length": 7}')
    hub.repositories[f"{NAME}@v1.0"] = other
    folder, _ = fetch(hub, tmp_path, "v1.0")
    assert "7" in (folder / "tokenizer_config.json").read_text()
    assert folder.name == hub.commit_of(f"{NAME}@v1.0") != COMMIT
    assert fetch(hub, tmp_path, folder.name)[0] == folder
    assert fetch(hub, tmp_path)[0].name == COMMIT
    message = fails(hub, tmp_path, SourceError, "v2.0")
    assert message == f"{hub.endpoint} has {NAME}, but no revision v2.0"


@pytest.mark.parametrize(
    ("failure", "kind", "part"),
    [
        ("unauthorised", SourceError, "(401): set HF_TOKEN to a token that may read it"),
        ("not found", SourceError, "or it is private: HF_TOKEN gives a token"),
        ("invalid token", SourceError, "(401): set HF_TOKEN to a token that may read it"),
        ("forbidden", SourceError, "(403): set HF_TOKEN to a token that may read it"),
        ("gated", SourceError, "is gated: accept its terms at"),
        ("gated, no token", SourceError, "is gated: accept its terms at"),
        ("too many", UnreachableError, "too many requests (429); wait, or set HF_TOKEN"),
        ("broken", UnreachableError, "cannot be fetched from {}: it answers 500"),
        ("unavailable", UnreachableError, "cannot be fetched from {}: it answers 503"),
        ("html", UnreachableError, "cannot be fetched from {}: "),
        ("cut", UnreachableError, "cannot be fetched from {}: "),
    ],
)
def test_a_hub_that_fails(
    hub: StandIn,
    tmp_path: Path,
    failure: str,
    kind: type[SourceError],
    part: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.failure = failure
    message = fails(hub, tmp_path, kind)
    assert part.format(hub.endpoint) in message
    assert NAME in message
    assert hub.tokens == {f"Bearer {TOKEN}"}
    assert TOKEN not in message
    assert capfd.readouterr() == ("", "")


def test_every_status_is_tried() -> None:
    (mark,) = test_a_hub_that_fails.pytestmark
    assert {case[0] for case in mark.args[1]} == {*STATUSES, "html", "cut"}


def test_a_failure_between_the_files(
    hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing was answered already."""

    def descriptions(*_: object) -> list[str]:
        hub.failure = "forbidden"
        return []

    monkeypatch.setattr("model.sources.hub.download.descriptions", descriptions)
    assert "(403): set HF_TOKEN" in fails(hub, tmp_path, SourceError)


def test_a_hub_out_of_reach(hub: StandIn, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    there = Hub(f"http://someone:secret@127.0.0.1:{port}", tmp_path / "cache")
    with pytest.raises(UnreachableError) as failed:
        download(there, Repository(NAME), print)
    assert f"{NAME} cannot be fetched from http://127.0.0.1:{port}: " in str(failed.value)
    assert "secret" not in str(failed.value)


def test_a_hub_that_never_answers(
    hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.sources.hub.download._SECONDS", 0.05)
    hub.failure = "silent"
    assert "timed out" in fails(hub, tmp_path, UnreachableError)


def test_a_token_is_not_told_whatever_fails(
    hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError(f"Illegal header value b'Bearer {TOKEN}'")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", fail)
    (tmp_path / "token").write_text(TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    message = fails(hub, tmp_path, UnreachableError)
    assert message.endswith("Illegal header value b'Bearer ***'")


def test_the_token_of_the_file_is_sent(
    hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    fetch(hub, tmp_path)
    assert hub.tokens == {f"Bearer {TOKEN}"}


def test_a_redirect_to_another_host_has_no_token(
    hub: StandIn, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with running({NAME: repository}) as other:
        hub.elsewhere, hub.claimed = other.endpoint, 5
        message = fails(hub, tmp_path, UnreachableError)
        assert "Consistency check failed" in message
        hub.claimed = 0
        folder, _ = fetch(hub, tmp_path)
        assert other.fetched == {"model.safetensors"}
        assert (hub.tokens, other.tokens) == ({f"Bearer {TOKEN}"}, {None})
    weights = (repository / "model.safetensors").read_bytes()
    assert (folder / "model.safetensors").read_bytes() == weights


def test_what_is_not_supported_is_refused_before_its_weights(
    hub: StandIn, repository: Path, tmp_path: Path
) -> None:
    edit_json(repository / "config.json", model_type="whisper")
    message = fails(hub, tmp_path, ConfigError)
    assert message.startswith(f"{NAME} is an audio model")
    assert "model.safetensors" not in hub.fetched


@pytest.mark.parametrize("shards", [1, 2])
def test_pickles_are_fetched_where_there_are_no_safetensors(
    hub: StandIn, repository: Path, tmp_path: Path, shards: int
) -> None:
    (repository / "pytorch_model.bin").unlink()
    (repository / "model.fp16.safetensors").unlink()
    pickle_weights(repository, shards=shards)
    pickles = {path.name for path in repository.glob("pytorch_model*")}
    folder, _ = fetch(hub, tmp_path)
    assert hub.fetched == PLAIN - {"model.safetensors"} | pickles
    found = find_cached(tmp_path / "cache", Repository(NAME))
    assert found == Snapshot(folder, [], [])


def test_the_linear_maps_of_bge_m3(hub: StandIn, repository: Path, tmp_path: Path) -> None:
    edit_json(repository / "config.json", model_type="xlm-roberta", max_position_embeddings=8194)
    pooling = {"word_embedding_dimension": 12, "pooling_mode_cls_token": True}
    write_modules(repository, "Transformer", "Pooling", Pooling=pooling)

    def unknown(*, pickles: bool = True) -> list[str]:
        found = find_cached(tmp_path / "cache", Repository(NAME), pickles=pickles)
        assert found is not None
        return found.unknown

    folder, _ = fetch(hub, tmp_path)
    assert unknown() == []  # the hub has said that there are none
    (absent,) = folder.parents[1].glob(".no_exist/*")
    for name in HYBRID_HEADS:
        (absent / name).unlink()  # as in a cache of a tool that does not look for them
        (repository / name).write_bytes(b"weights")
    assert unknown() == [*HYBRID_HEADS]
    assert unknown(pickles=False) == []
    folder, _ = fetch(hub, tmp_path)
    assert {*HYBRID_HEADS} <= files(folder)
    assert unknown() == []


def test_pickles_that_are_forbidden_are_not_fetched(
    hub: StandIn, repository: Path, tmp_path: Path
) -> None:
    (repository / "model.safetensors").unlink()
    there = Hub(hub.endpoint, tmp_path / "cache", pickles=False)
    with pytest.raises(CheckpointError, match=r"pickled weights alone \(pytorch_model\.bin"):
        download(there, Repository(NAME), lambda _: None)
    assert all(name.endswith(".json") for name in hub.fetched)


def test_a_repository_without_a_tokenizer(hub: StandIn, repository: Path, tmp_path: Path) -> None:
    (repository / "tokenizer.json").unlink()
    message = fails(hub, tmp_path, SourceError)
    assert message == f"{NAME} of {hub.endpoint} lacks tokenizer.json"


def test_bars_are_shown_as_before(hub: StandIn, tmp_path: Path) -> None:
    from huggingface_hub.utils import are_progress_bars_disabled

    before = are_progress_bars_disabled()
    fetch(hub, tmp_path)
    assert are_progress_bars_disabled() == before


def test_the_adapters_of_tasks(hub: StandIn, repository: Path, tmp_path: Path) -> None:
    config = {"model_type": "jina_embeddings_v3", "lora_adaptations": ["text-matching"]}
    edit_json(repository / "config.json", **config, position_embedding_type=None, type_vocab_size=1)
    (repository / "text_matching").mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (repository / "text_matching" / name).write_bytes(name.encode())
    (repository / "adapter_config.json.orig").write_bytes(b"not to be fetched")
    folder, _ = fetch(hub, tmp_path)
    adapter = {f"text_matching/adapter_{name}" for name in ("config.json", "model.safetensors")}
    assert hub.fetched == PLAIN | adapter
    assert adapter <= files(folder)
