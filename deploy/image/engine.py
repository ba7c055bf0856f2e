"""Builds of the Dockerfile without a docker engine and without a registry of images.

buildah runs in a folder of its own, isolated by chroot; a Debian tree stands in for the base image.
The pip of a build uses this machine's configuration of pip (options, certificates, indexes and
wheels on disk), read-only and outside the image.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUILD_SECONDS = 2400
DEBIAN = "bookworm"
"""Debian release with the Python version of the base image."""
PACKAGES = "ca-certificates,python3,python3-pip,python-is-python3"
BEGAN = time.monotonic()


class EngineError(Exception):
    """Failed build, or image that does not pass a check."""


def argument(name: str) -> str:
    """Return the default of an ARG of the Dockerfile."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    [value] = re.findall(rf"^ARG {name}=(.*)$", text, re.MULTILINE)
    return str(value)


def base_name() -> str:
    """Return the full name of the base image, without the digest, which a stand-in cannot have."""
    return f"docker.io/library/{argument('BASE').partition('@')[0]}"


def torch_index() -> str:
    """Return the Dockerfile's index of PyTorch for a CPU; empty, for pip's own, if unreachable."""
    index = argument("TORCH_INDEX")
    try:
        with urllib.request.urlopen(f"{index}/torch/", timeout=5):
            return index
    except urllib.error.URLError:
        return ""


def pip_options(listed: str) -> dict[str, str]:
    """Parse the options of `pip config list`; the environment's take precedence.

    Args:
        listed: lines such as `global.cert='/a'` and `:env:.cert='/b'`.

    """
    matches = re.findall(r"^(global|:env:)\.([a-z-]+)='(.*)'$", listed, re.MULTILINE)
    return {
        name: value.replace(r"\n", " ")
        for _, name, value in sorted(matches, key=lambda m: m[0] == ":env:")
    }


def pip_volumes(options: dict[str, str], configuration: Path) -> list[str]:
    """Return `--volume` arguments that mount pip's options, and the paths in them, into a build.

    Args:
        options: options from `pip_options`.
        configuration: file into which the options are written.

    """
    lines = [f"{name} = {value}\n" for name, value in options.items()]
    configuration.write_text("".join(["[global]\n", *lines]), encoding="utf-8")
    volumes = [f"--volume={configuration}:/etc/pip.conf:ro"]
    for word in " ".join(options.values()).split():
        # the pages of an index on disk link to files beside it
        path = (
            Path(word.removeprefix("file://")).parent if word.startswith("file://") else Path(word)
        )
        if path.is_absolute() and path.exists():
            volumes.append(f"--volume={path.resolve()}:{path}:ro")
    return volumes


class Engine:
    """buildah with images in a folder.

    Args:
        folder: folder of images and temporary files; 4 GB for a variant.
        driver: storage driver; `vfs`, which takes more disk, if the kernel cannot mount `overlay`.

    """

    def __init__(self, folder: Path, driver: str = "overlay") -> None:
        folder = folder.resolve()
        self._folder = folder
        self._log = folder / "log"
        self._storage = [
            f"--storage-driver={driver}",
            f"--root={folder / 'storage'}",
            f"--runroot={folder / 'run'}",
        ]
        (folder / "tmp").mkdir(parents=True, exist_ok=True)
        self._environment = os.environ | {
            "TMPDIR": str(folder / "tmp"),
            "BUILDAH_ISOLATION": "chroot",
            "DEBIAN_FRONTEND": "noninteractive",
        }

    def run(self, *arguments: str, seconds: float = 300) -> str:
        """Run a buildah command, and return its standard output.

        Raises:
            EngineError: the command failed; with the last lines of the log.

        """
        command = ["buildah", *self._storage, *arguments]
        return self._call(command, seconds, stdout=subprocess.PIPE).stdout

    def _call(
        self, command: list[str], seconds: float, stdout: int | None = None
    ) -> subprocess.CompletedProcess[str]:
        with self._log.open("a", encoding="utf-8") as log:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=self._environment,
                timeout=seconds,
                check=False,
                stdout=log if stdout is None else stdout,
                stderr=log,
                text=True,
            )
        if done.returncode:
            tail = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:]
            raise EngineError("\n".join([f"{command[0]} failed:", *tail]))
        return done

    def install(self) -> None:
        """Install buildah and debootstrap by apt if they are missing."""
        if not (shutil.which("buildah") and shutil.which("debootstrap")):
            self._call(["apt-get", "update"], 300)
            options = ["-y", "--no-install-recommends"]
            self._call(["apt-get", "install", *options, "buildah", "debootstrap"], 600)

    def make_base(self) -> None:
        """Make the base image's stand-in under its name, unless it exists."""
        name = base_name()
        with suppress(EngineError):
            self.run("inspect", "--type=image", name)
            return
        container = self.run("from", "scratch").strip()
        tree = self.run("mount", container).strip()
        # debootstrap's own mounts end with the mount namespace
        command = ["unshare", "--mount", "debootstrap", "--variant=minbase"]
        self._call([*command, f"--include={PACKAGES}", DEBIAN, tree], 900)
        for leaving in ("var/cache/apt", "var/lib/apt/lists", "var/log"):
            shutil.rmtree(Path(tree, leaving))
            Path(tree, leaving).mkdir()
        self.run("commit", "--rm", container, name, seconds=600)

    def build(self, target: str, tag: str, *options: str, **arguments: str) -> None:
        """Build a target of the Dockerfile.

        Args:
            target: name of a stage.
            tag: name of the image.
            options: further options of `buildah build`.
            arguments: build arguments.

        """
        listed = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        volumes = pip_volumes(pip_options(listed), self._folder / "pip.conf")
        build_arguments = {
            "BASE": base_name(),
            "TORCH_INDEX": torch_index(),
            "SOURCE_DATE_EPOCH": argument("SOURCE_DATE_EPOCH"),
        } | arguments
        command = [
            # docker's format, because OCI's has no HEALTHCHECK
            *("build", "--layers", "--pull-never", "--format=docker", f"--target={target}"),
            *(f"--build-arg={name}={value}" for name, value in build_arguments.items()),
            *(
                f"--timestamp={build_arguments['SOURCE_DATE_EPOCH']}",
                f"--tag={tag}",
                *volumes,
                *options,
            ),
            ".",
        ]
        self._call(["buildah", *self._storage, *command], BUILD_SECONDS)

    def inspect(self, tag: str) -> dict[str, Any]:
        """Return an image's configuration, in docker's form."""
        inspected: dict[str, Any] = json.loads(self.run("inspect", "--type=image", tag))["Docker"]
        return inspected

    def mount(self, tag: str) -> Path:
        """Mount a new container of an image, and return the root of its file system."""
        container = self.run("from", "--pull-never", tag).strip()
        return Path(self.run("mount", container).strip())

    def push(self, tag: str, folder: Path) -> list[int]:
        """Push an image into a folder, and return its layers' bytes, gzipped as in a registry."""
        self.run("push", "--format=v2s2", tag, f"dir:{folder}", seconds=900)
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        return [layer["size"] for layer in manifest["layers"]]

    def close(self) -> None:
        """Remove containers and mounts; the images stay."""
        self.run("rm", "--all")
        overlay = self._folder / "storage" / "overlay"
        while overlay.is_mount():
            subprocess.run(["umount", str(overlay)], check=True)


def step(what: str) -> None:
    """Print the next step, and the seconds since the start."""
    print(f"{time.monotonic() - BEGAN:4.0f} s  {what}", flush=True)


@contextmanager
def opened(storage: Path | None, driver: str) -> Iterator[Engine]:
    """Open an engine in a folder, by default a temporary one, with the base image's stand-in.

    Raises:
        EngineError: the process is not root's, or a command of the engine fails.

    """
    if os.geteuid():
        raise EngineError("buildah needs root: run this command as root")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        engine = Engine(storage or Path(folder), driver)
        try:
            engine.install()
            step("making the base image's stand-in")
            engine.make_base()
            yield engine
        finally:
            engine.close()
