"""Models whose vectors cannot be decomposed are refused before anything is computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.artifact.manifest import Artifact
from model.export.serving import serving_copy
from model.runtimes.capabilities import Decomposition
from service.engines.fake import FakeEngine
from service.errors import NotExported
from service.inference.core import Inference
from service.models.state import state_of
from tests.service.harness import CONFIG, serving

pytestmark = pytest.mark.anyio


async def core(artifact: Artifact) -> Inference:
    async with serving(artifact, FakeEngine(CONFIG)) as client:
        return state_of(client.app).models.default.inference


async def test_a_serving_only_artifact_is_refused_by_the_options_name(
    artifact: Artifact, tmp_path: Path
) -> None:
    (await core(artifact)).require(Decomposition)
    serving = serving_copy(artifact, tmp_path / "serving")
    with pytest.raises(NotExported, match=r"--serving-only, without .* a decomposition") as no:
        (await core(serving)).require(Decomposition)
    assert no.value.status == 501
