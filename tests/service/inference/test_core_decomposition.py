"""Models whose vectors cannot be decomposed are refused before anything is computed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from model.artifact.manifest import WEIGHTS, Artifact, load_artifact
from service.engines.fake import FakeEngine
from service.errors import NotExported
from service.inference.core import Inference
from service.serving.state import state_of
from tests.foreign import exported_from, write_foreign
from tests.service.harness import CONFIG, serving

pytestmark = pytest.mark.anyio


async def core(artifact: Artifact) -> Inference:
    async with serving(artifact, FakeEngine(CONFIG)) as client:
        return state_of(client.app).models.default.inference


async def test_a_copy_without_its_weights_is_refused_by_the_files_name(
    artifact: Artifact, tmp_path: Path
) -> None:
    (await core(artifact)).require_decomposition()
    folder = Path(shutil.copytree(artifact.folder, tmp_path / "copy"))
    (folder / WEIGHTS).unlink()
    with pytest.raises(NotExported, match=rf"was copied without {WEIGHTS}, which a decomp") as no:
        (await core(load_artifact(folder))).require_decomposition()
    assert no.value.status == 501


async def test_a_foreign_graph_is_refused(tmp_path: Path) -> None:
    foreign = exported_from(write_foreign(tmp_path / "tiny"))
    with pytest.raises(NotExported, match="not shares of input tokens: `headscope export` of"):
        (await core(foreign)).require_decomposition()
