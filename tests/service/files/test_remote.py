"""A running service gives an engine's results; requests are retried where that can help."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load

from headscope import Client
from headscope.sending import Answer, Lost
from model.artifact.manifest import Artifact
from service.engines.fake import FakeEngine
from service.engines.onnx import OnnxEngine
from service.files.options import Encoding, FileOptions, Outcome, Refused, UsageError
from service.files.remote import PATIENT, RemoteEncoder, ServiceFailure
from service.files.run import run
from service.inference.timings import Warnings
from service.settings import Settings
from tests.clients.python import fake
from tests.service.files.conftest import TEXTS, Encode, FewBatches
from tests.service.harness import listening
from tests.service.pictures import pictures_of


@pytest.fixture(scope="module")
def small_url(artifact: Artifact) -> Iterator[str]:
    """Run a service that takes eight texts a request."""
    with listening(artifact, FewBatches(artifact), max_client_batch_size=8, api_keys="secret") as (
        _,
        port,
    ):
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("kind", ["pooled", "tokens", "stats", "importance"])
def test_arrays_are_those_of_an_engine_here(
    encode: Encode, tmp_path: Path, small_url: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The refused text is the same too, wherever it is in its request."""
    source = tmp_path / "some.txt"
    source.write_text("\n".join([*TEXTS[:30], "word " * 600, *TEXTS[30:40]]), encoding="utf-8")
    options = {"kind": kind, "on_error": "skip", "layer": 1}
    assert encode(source, tmp_path / "there.npz", url=small_url, api_key="secret", **options) == 3
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
    encode: Encode, rows: Path, tmp_path: Path, small_url: str, name: str, ending: str
) -> None:
    """Numbers of both are equal, in every format, and of the requested type."""
    outs = [tmp_path / f"{where}.{ending}" for where in ("there", "here")]
    assert encode(rows, outs[0], url=small_url, api_key="secret", vector_type=name) == 0
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
    encode: Encode, tmp_path: Path, small_url: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """This holds for a service and for an engine here, also where texts are sent repeatedly."""
    source = tmp_path / "some.txt"
    source.write_text("\n".join(["word " * 600, *TEXTS[:30], "word " * 700]), encoding="utf-8")
    for name, options in {
        "here": {},
        "there": {"url": small_url, "api_key": "secret"},
    }.items():
        assert encode(source, tmp_path / f"{name}.npz", truncate=True, kind=kind, **options) == 0
        assert "headscope: 2 texts were cut to the most tokens" in capsys.readouterr().err, name


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"api_key": "wrong"}, r"refuses \(401\)"),
        ({"prompt_name": "query"}, r"refuses \(422\): unknown prompt_name"),
        ({"kind": "sparse"}, r"refuses \(422\): outputs: .* has no sparse"),
        ({"layer": 9}, r"refuses \(422\): layer 9 is not in"),
    ],
)
def test_what_the_service_refuses_is_told_at_once(
    encode: Encode, rows: Path, tmp_path: Path, small_url: str, change: dict[str, str], problem: str
) -> None:
    out = tmp_path / "out.npz"
    with pytest.raises(UsageError, match=problem):
        encode(rows, out, url=small_url, **{"api_key": "secret"} | change)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


@pytest.mark.parametrize(
    ("fingerprint", "says"),
    [
        (True, r"the model new, and expect_fingerprint is old .*written parts stay"),
        (False, r"arrays were \[\[4\]\], and are \[\[3\]\]; the written parts stay"),
    ],
)
def test_another_model_in_its_place_ends_the_run(
    encode: Encode,
    rows: Path,
    tmp_path: Path,
    small_url: str,
    monkeypatch: pytest.MonkeyPatch,
    fingerprint: bool,
    says: str,
) -> None:
    """Another model is detected by the fingerprint, or without one by the width of its vectors."""
    out, numbers = tmp_path / "out.npz", itertools.count()

    async def send(_client: Client, request: httpx.Request, _seconds: float) -> Answer:
        if request.url.path == "/info":
            return INFO
        texts, new = json.loads(request.content)["inputs"], next(numbers) > 50
        headers = {"x-model-fingerprint": "new" if new else "old"} if fingerprint else {}
        tensors = {"pooled": np.zeros((len(texts), 3 if new else 4), np.float32)}
        return Answer(200, headers, fake.binary(texts, tensors))

    with monkeypatch.context() as patched:
        patched.setattr(Client, "_send", send)
        with pytest.raises(ServiceFailure, match=says):
            encode(rows, out, url=small_url, api_key="secret")
    assert not out.exists()
    if fingerprint:  # the run goes on with its own model alone
        says = r"fingerprint \(was 'old', is '[0-9a-f]{16}'\).*--restart"
        with pytest.raises(UsageError, match=says):
            encode(rows, out, url=small_url, api_key="secret")
        assert encode(rows, out, url=small_url, api_key="secret", restart=True) == 0


def test_multivectors_are_those_of_an_engine_here(late_artifact: Artifact, tmp_path: Path) -> None:
    """Documents have a vector for each token that is not skipped, queries also for expansions."""
    source = tmp_path / "some.txt"
    source.write_text("the cat a b\nx , .\n", encoding="utf-8")
    settings = Settings(device="cpu", artifact=late_artifact.folder)
    with listening(late_artifact, OnnxEngine(late_artifact, "cpu")) as (_, port):
        for role in ("document", "query"):
            wanted = Encoding("multivector", prompt_name=role)
            for where, small_url in {"there": f"http://127.0.0.1:{port}", "here": None}.items():
                out = tmp_path / f"{where}-{role}.npz"
                options = FileOptions((str(source),), out, encoding=wanted, url=small_url)
                assert run(options, settings, lambda _: None) == 0
            found, expected = (
                np.load(tmp_path / f"{where}-{role}.npz") for where in ("there", "here")
            )
            np.testing.assert_array_equal(found["cu_seqlens"], expected["cu_seqlens"])
            np.testing.assert_allclose(found["multivector"], expected["multivector"], atol=1e-6)
            assert found["multivector"].shape[0] == found["cu_seqlens"][-1] > 0


def test_heads_of_a_vision_tower_are_its_own(
    encode_pictures: Encode,
    artifact: Artifact,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The text tower beside it has half as many heads."""
    vision = pictures_of(artifact)
    heads = vision.manifest.config.model_copy(update={"num_attention_heads": 4})
    vision = dataclasses.replace(
        vision, manifest=vision.manifest.model_copy(update={"config": heads})
    )
    both = dataclasses.replace(artifact, vision=vision)
    monkeypatch.setenv("HEADSCOPE_ENGINE", "fake")  # of the vision tower
    with listening(both, FakeEngine(artifact.manifest.config)) as (_, port):
        url, more = f"http://127.0.0.1:{port}", photos / "more"
        assert encode_pictures(more, tmp_path / "there.npy", url=url, kind="importance") == 0
    assert np.load(tmp_path / "there.npy").shape == (6, 2, 4)


@pytest.mark.parametrize("kind", ["pooled", "tokens", "stats"])
def test_pictures_are_those_of_an_engine_here(
    kind: str,
    encode_pictures: Encode,
    artifact: Artifact,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Rejected pictures have the same reasons, wherever they are in their request."""
    own = pictures_of(artifact)
    options = {"kind": kind, "on_error": "skip"}
    assert encode_pictures(photos, tmp_path / "here.npz", **options) == 3
    here = capsys.readouterr().err
    with listening(own, FakeEngine(own.manifest.config), max_client_batch_size=5) as (_, port):
        url = f"http://127.0.0.1:{port}"
        assert encode_pictures(photos, tmp_path / "there.npz", url=url, **options) == 3
    there = capsys.readouterr().err
    assert "damaged.jpg: the JPEG file is truncated or damaged" in there
    assert sorted(here.splitlines()) == sorted(there.splitlines())
    found, expected = np.load(tmp_path / "there.npz"), np.load(tmp_path / "here.npz")
    assert found.files == expected.files
    for name in expected.files:
        np.testing.assert_allclose(found[name], expected[name], atol=1e-6)


INFO = Answer(200, {}, json.dumps(fake.INFO).encode())


class Stub:
    """Service that gives its replies in turn, and repeats the last one."""

    url = "http://service.example"

    def __init__(self) -> None:
        self.replies: list[Answer | Lost] = []
        self.asked: list[tuple[str, str | None, str | None]] = []

    async def send(self, request: httpx.Request, _: float) -> Answer | Lost:
        headers = (request.headers.get(name) for name in ("authorization", "x-expect-fingerprint"))
        self.asked.append((request.url.path, *headers))
        return self.replies.pop(0) if self.replies[1:] else self.replies[0]


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Stub:
    """Replace every client's connections by a stub."""
    found = Stub()
    monkeypatch.setattr(Client, "_send", lambda _, *arguments: found.send(*arguments))
    return found


BUSY = Answer(429, {"retry-after": "0"}, b'{"detail": "the queue is full"}')


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry without waits."""
    hasty = replace(PATIENT, first_wait_seconds=0.001)
    monkeypatch.setattr("service.files.remote.PATIENT", hasty)


def remote(url: str, say: Callable[[str], None] = print, **options: Any) -> RemoteEncoder:
    return RemoteEncoder(FileOptions((), Path("out.npy"), url=url, **options), say)


def vectors(*texts: str, **headers: str) -> Answer:
    """Return a reply of /encode."""
    tensors = {"pooled": np.zeros((len(texts), 4), np.float32)}
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(200, names, fake.binary(texts, tensors))


def outcomes(encoder: RemoteEncoder, *texts: str) -> list[Outcome]:
    return [outcome for batch in encoder.begin(texts) for _, outcome in batch.result()]


def test_warnings_of_replies_are_counted(stub: Stub) -> None:
    """All but those of the trial; headers that are no numbers are not this service's."""
    counts = ("7", "2", "", "some", "3")
    stub.replies = [INFO, *(vectors("a", x_truncated=count) for count in counts)]
    with contextlib.closing(remote(stub.url)) as encoder:
        for _ in counts[1:]:
            outcomes(encoder, "a")
        assert encoder.warnings == Warnings(truncated=5)


def test_another_model_or_none_ends_the_run(stub: Stub) -> None:
    """A refusal without the header may be a proxy's."""
    one, two = (vectors("a", x_model_fingerprint=name) for name in ("one", "two"))
    refused = Answer(422, {}, b'{"detail": "inputs[0] has 600 tokens"}')
    another = Answer(409, {}, b'{"detail": "the fingerprint is two"}')
    stub.replies = [INFO, one, one, refused, two, vectors("a"), another]
    with contextlib.closing(remote(stub.url)) as encoder:
        assert encoder.identity["fingerprint"] == "one"
        assert np.array(outcomes(encoder, "a")).shape == (1, 1, 4)
        assert outcomes(encoder, "a") == [Refused("the text has 600 tokens")]
        for says in ("model two, and", "without a fingerprint, and", "fingerprint is two"):
            with pytest.raises(ServiceFailure, match=rf"{says}.*written parts stay; --restart"):
                outcomes(encoder, "a")
    assert [expected for _, _, expected in stub.asked] == [None, None, *["one"] * 5]


def test_a_service_without_fingerprints_is_told(stub: Stub) -> None:
    stub.replies, reported = [INFO, vectors("a")], list[str]()
    remote(stub.url, say=reported.append).close()
    (line,) = reported
    assert "answers without x-model-fingerprint" in line


def test_a_busy_service_is_asked_again(stub: Stub) -> None:
    """So are a proxy without its service, and a reply that breaks off."""
    broken = Lost("cut", begun=True)
    proxy = [Answer(status, {}, b"") for status in (503, 502)]
    stub.replies = [INFO, BUSY, *proxy, broken, vectors("a")]
    remote(stub.url, api_key="secret").close()
    keys = [(path, key) for path, key, _ in stub.asked]
    assert keys == [("/info", "Bearer secret"), *[("/encode", "Bearer secret")] * 5]


def test_a_service_that_never_answers(stub: Stub) -> None:
    stub.replies = [BUSY]
    with pytest.raises(ServiceFailure, match=r"429: the queue is full \(8 tries\); the same comm"):
        remote(stub.url)
    assert len(stub.asked) == 8


@pytest.mark.parametrize(("url", "key"), [("http://", None), ("http://a", "no key")])
def test_an_address_or_a_key_that_cannot_be_used(url: str, key: str | None) -> None:
    with pytest.raises(UsageError, match="http or https" if key is None else "api_key is empty"):
        remote(url, api_key=key)
