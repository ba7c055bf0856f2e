"""Replicas, the encoding of a corpus and the configuration files of Ray, without Ray."""

from __future__ import annotations

import ast
import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from deploy.ray import replica
from deploy.ray.corpus import (
    CorpusFolder,
    corpus_files,
    encode_file,
    job_of,
    unfinished,
)
from model.artifact.manifest import Artifact
from service.app import create_app
from service.engines.fake import FakeEngine
from service.errors import EngineFailed
from service.files.options import FileOptions, UsageError
from service.files.run import run
from service.models.state import state_of
from service.settings import Settings
from tests.service.files.conftest import FewBatches


def test_no_worker_processes_and_any_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve listens and scales; listening on a loopback address would refuse its clients' hosts."""
    monkeypatch.setenv("HEADSCOPE_HOST", "127.0.0.1")
    monkeypatch.setenv("HEADSCOPE_MAX_LENGTH", "7")
    settings = replica.replica_settings(engine="fake")
    assert (settings.host, settings.max_length, settings.engine) == ("0.0.0.0", 7, "fake")
    monkeypatch.setenv("HEADSCOPE_WORKERS", "2")
    with pytest.raises(ValueError, match="num_replicas"):
        replica.replica_settings()
    monkeypatch.setenv("HEADSCOPE_METRICS_PORT", "9464")
    with pytest.raises(ValueError, match="HEADSCOPE_METRICS_PORT does not apply"):
        replica.replica_settings()


@pytest.mark.anyio
async def test_refusals_pass_and_the_id_is_left_to_the_proxy(artifact: Artifact) -> None:
    """A full queue gives the service's own reply, with `Retry-After`; Serve checks readiness."""
    settings = replica.replica_settings(engine="fake", max_queue_texts=2)
    engine = FakeEngine(artifact.manifest.config, batch_seconds=0.2)
    app = replica.served_application(create_app(settings, [artifact], [engine]))
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://service.example") as client,
    ):
        await replica.check(app)
        body = {"inputs": ["water"]}
        replies = await asyncio.gather(*(client.post("/encode", json=body) for _ in range(3)))
        refused = [reply for reply in replies if reply.status_code == 429]
        assert refused
        assert all(int(reply.headers["retry-after"]) >= 1 for reply in refused)
        assert not any("x-request-id" in reply.headers for reply in replies)
        assert all("x-total-time" in reply.headers for reply in replies)
        state_of(app).readiness.draining = True
        with pytest.raises(replica.Unready, match="stopping"):
            await replica.check(app)


TEXTS = [f"{number} is the number of people in house {number % 7}" for number in range(120)]


@pytest.fixture
def settings(artifact: Artifact) -> Settings:
    return Settings(artifact=(artifact.folder,), device="cpu", max_batch_tokens=16)


@pytest.fixture
def options(tmp_path: Path) -> FileOptions:
    """Return options of two files, `a` the smaller, and a folder for their vectors."""
    for name, texts in ("a", TEXTS[:20]), ("b", TEXTS):
        pq.write_table(pa.table({"text": texts}), tmp_path / f"{name}.parquet")
    (tmp_path / "out").mkdir()
    pattern = str(tmp_path / "*.parquet")
    return FileOptions((pattern,), tmp_path / "out" / "corpus.parquet")


def test_a_killed_file_goes_on_and_is_that_of_the_command_line(
    artifact: Artifact, options: FileOptions, settings: Settings
) -> None:
    """Finished windows are not computed again, and finished files are not dispatched again."""
    small, large = corpus_files(options)
    folder = CorpusFolder(options.out.parent)
    with folder.held(restart=False):
        folder.begin(job_of(options, settings, artifact))
        assert unfinished(folder, [small, large]) == [large, small]
        with pytest.raises(EngineFailed):
            encode_file(large, options, settings, FewBatches(artifact, 75), print)
        assert unfinished(folder, [small, large]) == [large, small]
        engine = FewBatches(artifact)
        assert encode_file(large, options, settings, engine, print) == 0
        assert 0 < engine.texts < len(TEXTS)
        assert unfinished(folder, [small, large]) == [small]
    alone = options.out.with_name("alone.parquet")
    one = replace(options, inputs=(str(large),), out=alone)
    assert run(one, settings, print, FewBatches(artifact)) == 0
    assert folder.output(large).read_bytes() == alone.read_bytes()


def test_killed_between_output_and_receipt(
    artifact: Artifact, options: FileOptions, settings: Settings
) -> None:
    """The file is encoded again; a file of unknown origin is not replaced."""
    small, large = corpus_files(options)
    folder = CorpusFolder(options.out.parent)
    with folder.held(restart=False):
        encode_file(small, options, settings, FewBatches(artifact), print)
        receipt = folder.receipt(small)
        assert receipt is not None
        folder.keep(small, replace(receipt, code=None))
        assert unfinished(folder, [small]) == [small]
        assert encode_file(small, options, settings, FewBatches(artifact), print) == 0
        folder.output(large).write_bytes(b"somebody's")
        for _ in range(2):
            with pytest.raises(UsageError, match="--restart replaces it"):
                encode_file(large, options, settings, FewBatches(artifact), print)
        assert folder.output(large).read_bytes() == b"somebody's"
        again = replace(options, restart=True)
    with folder.held(restart=True):
        assert encode_file(large, again, settings, FewBatches(artifact), print) == 0
        assert pq.read_metadata(folder.output(large)).num_rows == len(TEXTS)


def test_what_does_not_fit_together(
    artifact: Artifact, options: FileOptions, settings: Settings, tmp_path: Path
) -> None:
    small, large = corpus_files(options)
    folder = CorpusFolder(options.out.parent)
    with folder.held(restart=False):
        folder.begin(job_of(options, settings, artifact))
        encode_file(small, options, settings, FewBatches(artifact), print)
        pq.write_table(pa.table({"text": TEXTS[:21]}), small)
        with pytest.raises(UsageError, match=r"a\.parquet was changed since it was encoded"):
            unfinished(folder, [small, large])
        other = job_of(replace(options, column="body"), settings, artifact)
        with pytest.raises(UsageError, match="belongs to a run with other column"):
            folder.begin(other)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.parquet").write_bytes(small.read_bytes())
    twice = replace(options, inputs=(*options.inputs, str(tmp_path / "elsewhere" / "*.parquet")))
    with pytest.raises(UsageError, match=r"would both become a\.parquet"):
        corpus_files(twice)
    with pytest.raises(UsageError, match=r"is not a \.parquet file"):
        corpus_files(replace(options, inputs=("-",)))


FOLDER = Path(replica.__file__).parent


def applications(name: str) -> list[dict[str, Any]]:
    content = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    if "spec" in content:
        content = yaml.safe_load(content["spec"]["serveConfigV2"])
    return list(content["applications"])


@pytest.mark.parametrize("name", ["serve.yaml", "kuberay.yaml"])
def test_names_and_settings(name: str) -> None:
    (application,) = applications(name)
    module, _, attribute = application["import_path"].partition(":")
    source = (FOLDER.parents[1] / module.replace(".", "/")).with_suffix(".py").read_text("utf-8")
    assigned = [node for node in ast.parse(source).body if isinstance(node, ast.Assign)]
    assert attribute in {target.id for node in assigned for target in node.targets}
    (deployment,) = application["deployments"]
    assert deployment["name"] == replica.NAME
    actor = deployment["ray_actor_options"]
    variables = actor["runtime_env"]["env_vars"]
    assert {one.removeprefix("HEADSCOPE_").lower() for one in variables} <= {*Settings.model_fields}
    assert float(variables["HEADSCOPE_THREADS"]) == actor["num_cpus"]
    scaling = deployment["autoscaling_config"]
    assert scaling["min_replicas"] < scaling["max_replicas"]


def test_ray_is_the_pinned_one() -> None:
    pins = (FOLDER / "requirements.txt").read_text(encoding="utf-8")
    content = yaml.safe_load((FOLDER / "kuberay.yaml").read_text(encoding="utf-8"))
    assert f"ray[data,serve]=={content['spec']['rayClusterConfig']['rayVersion']}\n" in pins
