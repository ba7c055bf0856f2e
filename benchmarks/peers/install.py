"""Virtual environments of the peers, which need other versions of our packages.

Run: python -m benchmarks.peers.install; the throughput benchmark does so too. An environment is
made anew when its requirements have changed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from testing.process import clean_environment

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parents[1] / ".bench"
PEERS = ("sentence_transformers", "fastembed", "ctranslate2", "infinity", "litserve")


class InstallError(Exception):
    """Failed installation of a peer; the message is the last line of the failed command."""


def python_of(peer: str) -> Path:
    """Return the interpreter of a peer's environment, which is made if it is missing or outdated.

    Raises:
        InstallError: pip cannot install the peer's requirements.

    """
    requirements, folder = HERE / f"{peer}.txt", ENVIRONMENTS / peer
    python, installed = folder / "bin" / "python", folder / "requirements.txt"
    wanted = requirements.read_text(encoding="utf-8")
    if installed.exists() and installed.read_text(encoding="utf-8") == wanted:
        return python
    print(f"installing {peer} into {folder}", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    run([sys.executable, "-m", "venv", str(folder)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, "--requirement", str(requirements)])
    installed.write_text(wanted, encoding="utf-8")
    return python


def run(command: list[str]) -> None:
    """Run a command with the model hub offline.

    Raises:
        InstallError: the command fails.

    """
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=clean_environment()
    )
    if done.returncode != 0:
        raise InstallError((done.stderr.strip() or "no reason given").splitlines()[-1])


def main() -> int:
    """Install every peer, and return the number of failures."""
    failed = 0
    for peer in PEERS:
        try:
            print(python_of(peer))
        except InstallError as error:
            print(f"{peer}: {error}", file=sys.stderr)
            failed += 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
