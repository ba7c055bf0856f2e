"""Outgoing traffic: names that each command looks up, and files that it writes at home.

Every command runs with an empty home folder and a preloaded library that records names and
addresses, whichever language resolves them.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from model.artifact.manifest import Artifact, load_artifact
from model.config.precision import Precision
from testing.process import Service, free_port
from tests.model.pickles import pickle_weights

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CHECKOUT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("recorder.c")
SECONDS = 300
PAIRS = "A cat sleeps.,A cat is asleep.,5\nA cat sleeps.,Stocks fell.,0\nIt rains.,It pours.,4\n"
COMMANDS = {
    "settings": "serve --help",
    "fetch the embedded default": "fetch",
    "bench": "bench --artifact {fp32} --artifact {int8} --pairs {out}/pairs.csv --device cpu",
    "encode": "encode {out}/texts.txt --out {out}/vectors.npy --artifact {int8}",
}
OWN = ".cache/headscope/"


@dataclass(frozen=True)
class Recorded:
    """Home folder, and a record of the processes that run with it."""

    home: Path
    log: Path
    environment: dict[str, str]

    def run(self, *command: str, code: int = 0) -> str:
        """Run Python with these arguments to its end, and return its standard error."""
        done = subprocess.run(
            [sys.executable, *command],
            env=self.environment,
            cwd=self.log.parent,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stderr

    @property
    def names(self) -> set[str]:
        """Host names and addresses of other machines."""
        lines = self.log.read_text("utf-8").splitlines() if self.log.exists() else []
        return {line for line in lines if line != "localhost" and not is_own(line)}

    @property
    def files(self) -> set[str]:
        """Files of the home folder outside Headscope's own cache."""
        found = (path.relative_to(self.home) for path in self.home.rglob("*") if path.is_file())
        return {path.as_posix() for path in found if not path.is_relative_to(OWN)}


def is_own(name: str) -> bool:
    """Return whether a name is a loopback address, or stands for every interface."""
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


@pytest.fixture(scope="session")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the recording library, and return its path."""
    if shutil.which("cc") is None:
        refuse = pytest.fail if os.environ.get("CI") else pytest.skip
        refuse("there is no C compiler: tests/journeys/install_compiler installs Debian's")
    library = tmp_path_factory.mktemp("recorder") / "recorder.so"
    command = ["cc", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return library


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Return a folder with a short path: names of sockets have 107 bytes at most."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def recorded(recorder: Path, tmp_path: Path, short_folder: Path) -> Recorded:
    """Return an empty home folder, and an environment without CI variables, which end telemetry."""
    home, log = short_folder / "home", tmp_path / "recorded.txt"
    (home / "tmp").mkdir(parents=True)
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(CHECKOUT),
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "TMPDIR": str(home / "tmp"),
        "LD_PRELOAD": str(recorder),
        "RECORDED": str(log),
    }
    return Recorded(home, log, environment)


def test_without_headscope_both_runtimes_leave_traces(recorded: Recorded) -> None:
    recorded.run("-c", "import onnxruntime, openvino")
    assert any("onnxruntime/deviceid" in file for file in recorded.files)
    assert "intel/openvino_ga_cid" in recorded.files
    assert any("analytics" in name for name in recorded.names)


@pytest.mark.parametrize(
    "imports",
    ["model.runtimes.onnx, model.runtimes.openvino", "service.app, onnxruntime, openvino"],
)
def test_a_program_that_imports_headscope_asks_nobody(recorded: Recorded, imports: str) -> None:
    recorded.run("-c", f"import {imports}")
    assert (recorded.names, recorded.files) == (set(), set())


@pytest.fixture
def places(
    tmp_path: Path,
    small_checkpoint: Path,
    tiny_checkpoint: Path,
    exported: Callable[[Path, str, Precision], Artifact],
) -> dict[str, Path]:
    """Return the folders that the commands name."""
    (tmp_path / "pairs.csv").write_text(PAIRS, "utf-8")
    (tmp_path / "texts.txt").write_text("A cat sleeps.\nIt rains.\n", "utf-8")
    return {
        "out": tmp_path,
        "checkpoint": tiny_checkpoint,
        "fp32": exported(small_checkpoint, "small", "fp32").folder,
        "int8": exported(small_checkpoint, "small", "int8").folder,
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_asks_nobody(recorded: Recorded, places: dict[str, Path], name: str) -> None:
    recorded.run("-m", "service", *COMMANDS[name].format(**places).split())
    assert (recorded.names, recorded.files) == (set(), set())


def test_an_export_asks_nobody_and_is_the_same_bytes_in_another_process(
    recorded: Recorded, tiny_checkpoint: Path, exported: Callable[..., Artifact], tmp_path: Path
) -> None:
    """The other process reads pickles, and has other hashes, a time zone and two threads."""
    other = {"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "OMP_NUM_THREADS": "2"}
    recorded.environment.update(other)
    checkpoint, out = shutil.copytree(tiny_checkpoint, tmp_path / "tiny"), tmp_path / "artifact"
    pickle_weights(checkpoint)
    said = recorded.run(
        *("-m", "service", "export", "--model", str(checkpoint), "--out", str(out))
    ).splitlines()
    assert said[1].endswith("and nothing else, from pickled weights: pytorch_model.bin")
    assert (recorded.names, recorded.files) == (set(), set())
    there, here = load_artifact(out), exported(tiny_checkpoint, "tiny")
    assert there.sha256 == here.sha256
    contents = (
        {path.name: path.read_bytes() for path in one.folder.iterdir()} for one in (there, here)
    )
    assert next(contents) == next(contents)


@pytest.mark.parametrize("flags", ["--artifact {fp32} --workers 2", "--artifact {int8}"])
def test_a_service_asks_nobody(recorded: Recorded, places: dict[str, Path], flags: str) -> None:
    """Its workers and the PyTorch process, which /verify starts, do not either."""
    port = free_port()
    command = [sys.executable, "-m", "service", "serve", "--port", str(port)]
    command += flags.format(**places).split()
    with Service(command, port, environment=recorded.environment) as service:
        service.wait_until_ready()
        with httpx.Client(base_url=service.url, timeout=120) as client:
            for route in ("/encode", "/attention", "/verify"):
                reply = client.post(route, json={"inputs": "Hello world"})
                assert reply.status_code == 200, reply.text
            assert client.get("/docs").status_code == 200
        service.stop()
    assert (recorded.names, recorded.files) == (set(), set())


def test_a_name_of_the_hub_asks_the_hub_alone(recorded: Recorded) -> None:
    recorded.environment["HF_ENDPOINT"] = "http://hub.invalid"
    said = recorded.run("-m", "service", "fetch", "ORG/NAME", code=1)
    assert "hub.invalid" in said
    assert recorded.names == {"hub.invalid"}
    assert {file for file in recorded.files if not file.startswith(".cache/huggingface/")} == set()
