"""Service in one process, as it starts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import pytest

from model.artifact.manifest import WEIGHTS, Artifact
from service.models.state import ServiceState
from service.process import single
from service.settings import Settings
from testing.process import Service, free_port

APART = """
import sys
import service.process.single
web = {"fastapi", "uvicorn", "service.api", "service.app", "service.process.server"}
assert not web & sys.modules.keys(), web & sys.modules.keys()
service.process.single.import_web()
assert web <= sys.modules.keys(), web - sys.modules.keys()
from service.api.dashboard import files
assert files.cache_info().currsize == 0
"""


@pytest.mark.slow
def test_models_load_without_the_web_framework_and_the_dashboard_is_made_later() -> None:
    subprocess.run([sys.executable, "-c", APART], check=True, timeout=60)


def test_batches_are_measured_once_all_is_imported(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Measuring(Exception):
        """Raised by the stub in place of a state."""

    def build_state(
        _: Settings, artifacts: Sequence[Artifact], *, idle: Callable[[], object]
    ) -> ServiceState:
        assert [*artifacts] == [artifact]
        assert idle is single.import_web
        raise Measuring

    monkeypatch.setattr(single, "build_state", build_state)
    monkeypatch.setattr("service.system.logs.configure", lambda *_: None)
    monkeypatch.setattr("faulthandler.enable", lambda *_, **__: None)  # pytest's own stays
    with pytest.raises(Measuring):
        single.serve(Settings(port=free_port()), [artifact])


@pytest.mark.slow
def test_an_artifact_that_is_truncated_in_place_ends_the_service_with_a_reason(
    tiny_artifact: Artifact, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(tiny_artifact.folder, tmp_path / "copy"))
    with Service.of_headscope("--artifact", str(copy)) as service:
        service.wait_until_ready()
        os.truncate(copy / WEIGHTS, 0)
        with pytest.raises(httpx.TransportError):
            httpx.post(f"{service.url}/encode", json={"inputs": "a b c"}, timeout=60)
        assert service.process.wait(60) == -signal.SIGBUS
        assert "Fatal Python error: Bus error" in service.log.splitlines()
