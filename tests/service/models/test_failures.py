"""Failed loads: what clients and admins see of them, and the pause before they are repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.artifact.manifest import MANIFEST, Artifact
from service.artifacts.footprint import footprint
from service.artifacts.repository import Target
from service.settings import Settings
from tests.service.harness import assert_problem
from tests.service.repositories import add, control_of, encode, load, serving_repository
from tests.service.scraped import samples

pytestmark = pytest.mark.anyio


async def test_what_does_not_fit_names_other_models_to_admins_alone(
    tmp_path: Path, tiny_artifact: Artifact
) -> None:
    add(tmp_path, "secret", tiny_artifact)
    add(tmp_path, "wanted", tiny_artifact)
    budget = footprint(tiny_artifact, Settings(engine="fake")).total * 3 // 2
    async with serving_repository(tmp_path, memory_budget=budget, pinned=("secret",)) as client:
        reply = await encode(client, "wanted")
        problem = assert_problem(reply, 507, "the model needs about", error_type="Backend")
        assert f"of the {round(budget / 2**20)} MiB for all models" in problem["detail"]
        assert "secret" not in reply.text
        manifest = tmp_path / "wanted" / MANIFEST
        whole = manifest.read_bytes()
        manifest.write_text("{}", encoding="utf-8")
        again = assert_problem(await encode(client, "wanted"), 507, error_type="Backend")
        assert again["detail"] == problem["detail"], "the changed file is not opened so soon"
        manifest.write_bytes(whole)
        assert_problem(await load(client, "wanted"), 507, "secret@1", error_type="Backend")
        found = await samples(client)
        assert found["headscope_model_load_failures_total", (("reason", "memory"),)] == 2
        assert found["headscope_model_load_failures_total", (("reason", "invalid"),)] == 0
        assert found["headscope_models_bytes_limit", ()] == budget
        assert budget / 3 < found["headscope_models_bytes", ()] < budget
        assert "secret@1" in control_of(client).failure(Target("wanted", "1"))
