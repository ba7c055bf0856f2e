"""Sizes and cold starts of images, as rows of docs/operations.md.

`python -m deploy.image.measure --storage FOLDER TARGET...` after `deploy.image.check` has built the
targets there.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from deploy.image.engine import Engine, base_name, opened
from deploy.image.lock import SERVING
from deploy.image.sandbox import Sandbox, Service
from testing.process import free_port

STARTS = 5
MEGABYTE = 1e6


def files(root: Path) -> Iterator[Path]:
    """Yield the regular files below a folder, without following links."""
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            yield path


def size(root: Path) -> int:
    """Return the bytes of the files below a folder; a file with several names counts once."""
    sizes_of_files = {
        (status.st_dev, status.st_ino): status.st_size for status in map(Path.stat, files(root))
    }
    return sum(sizes_of_files.values())


def cold_start(sandbox: Sandbox) -> float:
    """Return the median seconds from the command's start to readiness, with a warm page cache."""
    seconds = []
    for _ in range(STARTS):
        began = time.monotonic()
        with Service(sandbox) as service:
            service.wait_until_ready()
            seconds.append(time.monotonic() - began)
            service.terminate()
            service.wait_for_end()
    return statistics.median(seconds)


def sizes(engine: Engine, tag: str, base_layers: int) -> tuple[float, float]:
    """Return an image's megabytes: of its files with the base, and of its own layers by gzip."""
    with tempfile.TemporaryDirectory() as folder:
        layers = engine.push(tag, Path(folder))
    return size(engine.mount(tag)) / MEGABYTE, sum(layers[base_layers:]) / MEGABYTE


def measure(engine: Engine, targets: list[str]) -> None:
    """Print the base's size, and a table of the targets without the base."""
    base = base_name()
    with tempfile.TemporaryDirectory() as folder:
        compressed = engine.push(base, Path(folder))
    plain = size(engine.mount(base)) / MEGABYTE
    print(f"base's stand-in: {plain:.0f} MB, compressed {sum(compressed) / MEGABYTE:.0f} MB\n")
    print("| target | files, MB | compressed, MB | run to ready, s |\n|---|---|---|---|")
    for target in targets:
        tag = f"headscope:{target}"
        sandbox = Sandbox(engine.mount(tag), engine.inspect(tag)["config"], free_port())
        start = cold_start(sandbox)
        whole, ours = sizes(engine, tag, len(compressed))
        print(f"| `{target}` | {whole - plain:.0f} | {ours:.0f} | {start:.2f} |", flush=True)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="+", choices=SERVING)
    parser.add_argument("--storage", type=Path, required=True, help="folder of the images")
    parser.add_argument("--driver", default="overlay", choices=["overlay", "vfs"])
    options = parser.parse_args()
    with opened(options.storage, options.driver) as engine:
        measure(engine, options.targets)


if __name__ == "__main__":
    main()
