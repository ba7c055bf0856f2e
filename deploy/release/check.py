"""Check of a release: build, inspect, install and try both distributions; nothing is uploaded.

`python -m deploy.release.check --artifact FOLDER` builds the commit that is checked out, not the
working tree, and leaves the files that passed in `dist/`. `make release` runs it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from deploy.image import answers
from deploy.image.engine import EngineError, step
from testing.process import Service, clean_environment, free_port

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / ".venv-release" / "bin" / "python"
DIST = ROOT / "dist"
PARTS = {
    "headscope_server": ("model/py.typed", "service/py.typed", "service/dashboard/index.html"),
    "headscope": ("headscope/py.typed",),
}
"""Distribution → files of its wheel beside the code and the licence."""
CLIENT = "import sys, headscope; print(*headscope.Client(sys.argv[1]).embed([sys.argv[2]])[0])"


def run(*words: str | Path, cwd: Path = ROOT, variables: Mapping[str, str] | None = None) -> str:
    """Run a command without PYTHONPATH, and return its output.

    Raises:
        EngineError: the command failed; the message has its output.

    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=environment | dict(variables or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise EngineError(f"{words[0]} failed:\n{done.stdout}")
    return done.stdout


def export_commit(root: Path, folder: Path) -> str:
    """Write the files of the current commit to a folder, and return the commit's Unix time.

    Raises:
        EngineError: the working tree has changes that are not committed.

    """
    if changes := run("git", "status", "--porcelain", cwd=root):
        raise EngineError(f"a release is built from a commit; commit or remove first:\n{changes}")
    run("git", "archive", "--output", folder / "source.tar", "HEAD", cwd=root)
    shutil.unpack_archive(folder / "source.tar", folder / "source", filter="data")
    return run("git", "log", "-1", "--format=%ct", cwd=root).strip()


def build(scratch: Path) -> list[Path]:
    """Build both sdists, and a wheel from each, and return the wheels."""
    seconds = export_commit(ROOT, scratch)
    shutil.rmtree(DIST, ignore_errors=True)
    source = scratch / "source"
    pins = {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "SOURCE_DATE_EPOCH": seconds}
    for folder in (source, source / "clients" / "python"):
        run(TOOLS, "-m", "build", "--outdir", DIST, folder, variables=pins)
    run(TOOLS, "-m", "twine", "check", "--strict", *sorted(DIST.iterdir()))
    return sorted(DIST.glob("*.whl"))


def inspect(wheel: Path) -> None:
    """Check that a wheel has its licence, its types and the dashboard's page.

    Raises:
        EngineError: the wheel lacks one of these files.

    """
    name, version = wheel.name.split("-")[:2]
    wanted = {*PARTS[name], f"{name}-{version}.dist-info/licenses/LICENSE"}
    if missing := wanted - set(zipfile.ZipFile(wheel).namelist()):
        raise EngineError(f"{wheel.name} lacks {', '.join(sorted(missing))}")


def install(wheels: list[Path], python: str, folder: Path) -> Path:
    """Install the wheels with ONNX Runtime in an empty environment, and return its `bin`."""
    run(python, "-m", "venv", "--without-pip", folder)
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python"]
    extras = [f"{wheel}[cpu]" if "server" in wheel.name else str(wheel) for wheel in wheels]
    run(*pip, "install", "--quiet", "--constraint", ROOT / "constraints.txt", *extras)
    run(*pip, "check")
    return folder / "bin"


def serve(programs: Path, artifact: Path, scratch: Path) -> None:
    """Serve an artifact from the new environment, and compare replies with transformers.

    Raises:
        EngineError: a reply differs from the reference.

    """
    checkpoint = run(sys.executable, "-m", "service", "fetch").splitlines()[-1]
    expected = answers.reference(checkpoint)
    port = free_port()
    command = [str(programs / "headscope"), "serve", "--port", str(port)]
    environment = clean_environment(HEADSCOPE_ARTIFACT=str(artifact), PYTHONSAFEPATH="1")
    environment.pop("PYTHONPATH", None)
    with Service(command, port, environment=environment) as service:
        service.wait_until_ready()
        answers.compare(service.url, expected, "fp32", "onnx")
        words = run(programs / "python", "-c", CLIENT, service.url, answers.TEXT, cwd=scratch)
        difference = float(np.abs(np.array(words.split(), float) - expected["pooled"]).max())
        answers.check("client: largest difference of the vector", difference, difference < 1e-5)
        service.stop()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--artifact", type=Path, required=True, help="fp32 artifact to serve")
    parser.add_argument("--python", default=sys.executable, help="Python of the new environment")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as folder:
            scratch = Path(folder)
            step("building and checking")
            wheels = build(scratch)
            for wheel in wheels:
                inspect(wheel)
            step("installing into an empty environment")
            programs = install(wheels, options.python, scratch / "venv")
            print(run(programs / "headscope", "--version", cwd=scratch), end="")
            step("serving")
            serve(programs, options.artifact, scratch)
    except EngineError as error:
        sys.exit(f"{error}\nFAILED")
    step(f"PASSED: {', '.join(sorted(path.name for path in DIST.iterdir()))}")


if __name__ == "__main__":
    main()
