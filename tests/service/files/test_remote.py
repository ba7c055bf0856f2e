"""A running service gives the same results as an engine in this process."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load, save

from headscope import Client
from headscope.wire import Answer
from model.artifact.manifest import Artifact
from service.engines.onnx import OnnxEngine
from service.files.connection import Connection, ServiceFailure
from service.files.options import Encoding, FileOptions, UsageError
from service.files.remote import RemoteEncoder
from service.files.run import run
from service.settings import Settings
from tests.service.files.conftest import TEXTS, Encode, FewBatches
from tests.service.harness import listening


@pytest.fixture(scope="module")
def url(artifact: Artifact) -> Iterator[str]:
    """Run a service that takes eight texts a request."""
    with listening(artifact, FewBatches(artifact), max_client_batch_size=8, api_keys="secret") as (
        _,
        port,
    ):
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("kind", ["pooled", "tokens", "stats", "importance"])
def test_arrays_are_those_of_an_engine_here(
    encode: Encode, tmp_path: Path, url: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The refused text is the same too, wherever it is in its request."""
    source = tmp_path / "some.txt"
    source.write_text("\n".join([*TEXTS[:30], "word " * 600, *TEXTS[30:40]]), encoding="utf-8")
    options = {"kind": kind, "on_error": "skip", "layer": 1}
    assert encode(source, tmp_path / "there.npz", url=url, api_key="secret", **options) == 3
    there = capsys.readouterr().err
    assert encode(source, tmp_path / "here.npz", **options) == 3
    assert "some.txt, line 31: the text has 602 tokens; at most 512 fit" in there
    assert "were cut" not in there
    assert capsys.readouterr().err == there
    found, expected = np.load(tmp_path / "there.npz"), np.load(tmp_path / "here.npz")
    assert found.files == expected.files
    for name in expected.files:
        np.testing.assert_allclose(found[name], expected[name], atol=1e-6)


@pytest.mark.parametrize(
    ("name", "ending"),
    [("float16", "npy"), ("ubinary", "parquet"), ("int8", "jsonl"), ("int8", "safetensors")],
)
def test_types_of_vectors_are_those_of_an_engine_here(
    encode: Encode, rows: Path, tmp_path: Path, url: str, name: str, ending: str
) -> None:
    """Numbers of both are equal, in every format, and of the requested type."""
    outs = [tmp_path / f"{where}.{ending}" for where in ("there", "here")]
    assert encode(rows, outs[0], url=url, api_key="secret", vector_type=name) == 0
    assert encode(rows, outs[1], vector_type=name) == 0
    found, expected = (vectors_of(out) for out in outs)
    np.testing.assert_array_equal(found, expected)
    if ending != "jsonl":
        assert found.dtype == np.dtype({"ubinary": "uint8"}.get(name, name))
    assert found.shape[1] == (16 if name == "ubinary" else 128)


def vectors_of(out: Path) -> np.ndarray:
    """Return the vectors of a file."""
    match out.suffix:
        case ".npy":
            vectors: np.ndarray = np.load(out)
            return vectors
        case ".parquet":
            column = pq.read_table(out)["embedding"].combine_chunks()
            return np.asarray(column.values).reshape(len(column), -1)
        case ".jsonl":
            lines = out.read_text(encoding="utf-8").splitlines()
            return np.array([json.loads(line)["embedding"] for line in lines])
    return load(out.read_bytes())["embedding"]


@pytest.mark.parametrize("kind", ["pooled", "importance"])
def test_texts_that_are_cut_are_counted_at_the_end(
    encode: Encode, tmp_path: Path, url: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """This holds for a service and for an engine here, also where texts are sent repeatedly."""
    source = tmp_path / "some.txt"
    source.write_text("\n".join(["word " * 600, *TEXTS[:30], "word " * 700]), encoding="utf-8")
    for name, options in {"here": {}, "there": {"url": url, "api_key": "secret"}}.items():
        assert encode(source, tmp_path / f"{name}.npz", truncate=True, kind=kind, **options) == 0
        assert "headscope: 2 texts were cut to the most tokens" in capsys.readouterr().err, name


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"api_key": "wrong"}, r"refuses \(401\)"),
        ({"prompt_name": "query"}, r"refuses \(422\): unknown prompt_name"),
        ({"kind": "sparse"}, r"refuses \(424\)"),
        ({"layer": 9}, r"refuses \(422\): layer 9 is not in"),
    ],
)
def test_what_the_service_refuses_is_told_at_once(
    encode: Encode, rows: Path, tmp_path: Path, url: str, change: dict[str, str], problem: str
) -> None:
    out = tmp_path / "out.npz"
    with pytest.raises(UsageError, match=problem):
        encode(rows, out, url=url, **{"api_key": "secret"} | change)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


class AnotherModel:
    """Wrapper of the client's requests whose later replies look like another model's."""

    def __init__(self, change: str, patched: pytest.MonkeyPatch) -> None:
        self.send, self.change, self.sent = Client.request, change, 0
        patched.setattr(Client, "request", self)

    def __get__(self, client: Client, _: type) -> Callable[..., Answer]:
        return functools.partial(self.changed, client)

    def changed(self, client: Client, *args: Any, **fields: Any) -> Answer:
        client.expect_fingerprint = None  # the service would refuse the one of another model
        answer = self.send(client, *args, **fields)
        self.sent += 1
        headers = {**answer.headers}
        headers.pop("x-model-fingerprint", None)
        if self.change == "fingerprint":
            headers["x-model-fingerprint"] = "old" if self.sent < 12 else "new"
        if self.change != "width" or self.sent < 12:
            return replace(answer, headers=headers)
        tensors = {name: array[..., :-1] for name, array in load(answer.content).items()}
        return replace(answer, headers=headers, content=save(tensors))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("fingerprint", "x-model-fingerprint was old, and is new; the written parts stay"),
        ("width", r"arrays were \[\[\d+\]\], and are \[\[\d+\]\]; the written parts stay"),
    ],
)
def test_another_model_in_its_place_ends_the_run(
    encode: Encode,
    tmp_path: Path,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    says: str,
) -> None:
    """Another model is detected by the fingerprint, or without one by the width of its vectors."""
    source, out = tmp_path / "some.txt", tmp_path / "out.npz"
    source.write_text("\n".join(TEXTS), encoding="utf-8")
    with monkeypatch.context() as patched:
        AnotherModel(change, patched)
        with pytest.raises(ServiceFailure, match=says):
            encode(source, out, url=url, api_key="secret")
    assert not out.exists()


def test_a_run_goes_on_with_its_own_model_alone(
    encode: Encode, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = tmp_path / "some.txt", tmp_path / "out.npz"
    source.write_text("\n".join(TEXTS), encoding="utf-8")
    with monkeypatch.context() as patched:
        AnotherModel("fingerprint", patched)
        with pytest.raises(ServiceFailure):
            encode(source, out, url=url, api_key="secret")
    says = r"fingerprint \(was 'old', is '[0-9a-f]{16}'\).*--restart"
    with pytest.raises(UsageError, match=says):
        encode(source, out, url=url, api_key="secret")
    assert encode(source, out, url=url, api_key="secret", restart=True) == 0


def test_a_service_without_fingerprints_is_told(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[str] = []
    AnotherModel("header", monkeypatch)
    with contextlib.closing(Connection(url, "secret")) as connection:
        RemoteEncoder(connection, Encoding(), reported.append).close()
    (line,) = reported
    assert "answers without x-model-fingerprint" in line


def test_multivectors_are_those_of_an_engine_here(late_artifact: Artifact, tmp_path: Path) -> None:
    """Documents have a vector for each token that is not skipped, queries also for expansions."""
    source = tmp_path / "some.txt"
    source.write_text("the cat a b\nx , .\n", encoding="utf-8")
    settings = Settings(device="cpu", artifact=late_artifact.folder)
    with listening(late_artifact, OnnxEngine(late_artifact, "cpu")) as (_, port):
        for role in ("document", "query"):
            wanted = Encoding("multivector", prompt_name=role)
            for where, url in {"there": f"http://127.0.0.1:{port}", "here": None}.items():
                out = tmp_path / f"{where}-{role}.npz"
                options = FileOptions((str(source),), out, encoding=wanted, url=url)
                assert run(options, settings, lambda _: None) == 0
            found, expected = (
                np.load(tmp_path / f"{where}-{role}.npz") for where in ("there", "here")
            )
            np.testing.assert_array_equal(found["cu_seqlens"], expected["cu_seqlens"])
            np.testing.assert_allclose(found["multivector"], expected["multivector"], atol=1e-6)
            assert found["multivector"].shape[0] == found["cu_seqlens"][-1] > 0
