"""Twins: fp32 artifacts that answer for the heads of other models."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from model.artifact.manifest import MANIFEST, Artifact
from service.cli import main
from service.models.twins import twins_of
from service.settings import Settings
from tests.service.cli.said import one_line
from tests.service.inference.test_uses import failing


def changed(artifact: Artifact, **update: Any) -> Artifact:
    """Return the artifact with another manifest."""
    return replace(artifact, manifest=artifact.manifest.model_copy(update=update))


def test_one_twin_answers_for_every_precision_that_needs_it(artifact: Artifact) -> None:
    int8 = changed(failing(artifact, "heads"), precision="int8")
    models = {"m:int8": int8, "m:bf16": int8, "m:fp16": changed(artifact, precision="fp16")}
    twins = twins_of(models, [artifact], Settings())
    assert twins.names == ["m:fp32"]
    assert twins.of_models == {"m:int8": "m:fp32", "m:bf16": "m:fp32"}
    assert twins_of({"given": int8}, [artifact], Settings()).names == ["given:fp32"]


def test_an_artifact_of_no_use_is_refused(artifact: Artifact) -> None:
    int8 = changed(failing(artifact, "heads"), precision="int8")
    other = changed(artifact, weights_sha256="0" * 64)
    tokenizer = artifact.manifest.files["tokenizer.json"].model_copy(update={"sha256": "0" * 64})
    otherwise = changed(artifact, files=artifact.manifest.files | {"tokenizer.json": tokenizer})
    cases: list[tuple[dict[str, Artifact], list[Artifact], str]] = [
        ({"m": int8}, [int8], "is int8 and its heads failed"),
        ({"m": int8}, [failing(artifact, "heads")], "is fp32 and its heads failed"),
        ({"m": int8}, [other], "is not served; export in fp32 the checkpoint of .*: m"),
        ({"m": int8}, [otherwise], "is not served"),
        ({"m": artifact}, [artifact], "m needs no other artifact"),
        ({"m": int8}, [artifact, artifact], "m needs no other artifact"),
        ({"m": int8, "m:fp32": artifact}, [artifact], "m:fp32 is a served model"),
    ]
    for models, sources, says in cases:
        with pytest.raises(ValueError, match=f"^--heads-from .*{says}"):
            twins_of(models, sources, Settings())
    with pytest.raises(ValueError, match="every model serves its own heads with --allow-unverif"):
        twins_of({"m": int8}, [artifact], Settings(allow_unverified=True))


def test_a_twin_is_refused_before_any_model_is_exported(
    artifact: Artifact,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("service.cli.serve.open_artifact", None)  # whoever calls it fails
    folder = Path(shutil.copytree(artifact.folder, tmp_path / "twin"))
    command = ["serve", "--model", "org/name", "--heads-from", str(folder)]
    assert main([*command, "--allow-unverified"]) == 1
    assert "leave one of the two out" in one_line(capsys, "serve")
    manifest = failing(artifact, "heads").manifest
    (folder / MANIFEST).write_text(manifest.model_dump_json(), encoding="utf-8")
    assert main(command) == 1
    assert "is fp32 and its heads failed" in one_line(capsys, "serve")
    (folder / MANIFEST).unlink()
    assert main(command) == 1
    assert MANIFEST in one_line(capsys, "serve")
