"""Second build of an image without a cache, compared with the first layer by layer.

`python -m deploy.image.reproduce --storage FOLDER TARGET` after `deploy.image.check` has built the
target there. Prints the files that differ; the exit status is 1 if there are any.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

from deploy.image.engine import Engine, opened, step
from deploy.image.lock import SERVING
from deploy.image.measure import files


def digests(root: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below a folder, by relative path."""
    digest_of = {}
    for path in files(root):
        with path.open("rb") as file:
            digest_of[str(path.relative_to(root))] = hashlib.file_digest(file, "sha256").hexdigest()
    return digest_of


def differing(one: dict[str, str], other: dict[str, str]) -> list[str]:
    """Return the paths whose files differ, or that only one side has."""
    return sorted(path for path in one.keys() | other.keys() if one.get(path) != other.get(path))


def rebuild(engine: Engine, target: str) -> bool:
    """Build the target again, print the files that differ, and return whether layers are equal."""
    first, second = f"headscope:{target}", f"headscope:{target}-again"
    step(f"building {target} again, without a cache")
    engine.build(target, second, "--no-cache")
    layers = [engine.inspect(tag)["rootfs"]["diff_ids"] for tag in (first, second)]
    equal = [one == other for one, other in zip(*layers, strict=True)]
    step(f"{sum(equal)} of {len(equal)} layers have the same digest")
    for path in differing(*(digests(engine.mount(tag)) for tag in (first, second))):
        print(f"        differs: {path}")
    return all(equal)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=SERVING)
    parser.add_argument("--storage", type=Path, required=True, help="folder of the images")
    parser.add_argument("--driver", default="overlay", choices=["overlay", "vfs"])
    options = parser.parse_args()
    with opened(options.storage, options.driver) as engine:
        sys.exit(0 if rebuild(engine, options.target) else 1)


if __name__ == "__main__":
    main()
