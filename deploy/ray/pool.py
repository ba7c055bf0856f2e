"""Actors of Ray Data, each with an engine, to which files are handed out.

https://docs.ray.io/en/latest/data/batch_inference.html
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import ray.data
from ray.data import ActorPoolStrategy

from deploy.ray.corpus import encode_file
from model.errors import ArtifactError
from service.artifacts.opening import open_artifact
from service.cli.exits import FAILURES, code_of, one_line
from service.files.local import start_engine
from service.files.options import FileOptions
from service.settings import Settings
from service.system import resources


@dataclass(frozen=True)
class Pool:
    """The actors, and what each is given of the cluster."""

    actors: int
    cpus: int
    gpus: float


class Done(NamedTuple):
    """What became of a file."""

    source: str
    code: int
    """Exit code of `headscope encode`."""
    problem: str
    """Empty where there is none."""


class FileEncoder:
    """An engine, to which one file after the other is given."""

    def __init__(self, options: FileOptions, settings: Settings, sha256: str) -> None:
        """Start the engine.

        Args:
            options: of every file; `out` is any file of the corpus' folder.
            settings: the model and its engine.
            sha256: of the artifact that the run began with.

        Raises:
            ModelError: this node has another artifact, or none; or the engine disagrees with it.
            ServiceError: the engine cannot be started.

        """
        resources.settle_allocator()
        artifact = open_artifact(settings, _silent)
        if artifact.sha256 != sha256:
            raise ArtifactError(f"{artifact.folder} is not the artifact that the run began with")
        self._options, self._settings = options, settings
        self._engine = start_engine(settings, artifact)

    def __call__(self, rows: dict[str, Any]) -> dict[str, list[Any]]:
        """Encode the file that a batch of one row names; what fails of it is told in the result."""
        (source,) = map(str, rows["item"])
        problem = ""
        try:
            code = encode_file(Path(source), self._options, self._settings, self._engine, _silent)
        except FAILURES as error:
            code, problem = code_of(error), one_line(error)
        return {"source": [source], "code": [int(code)], "problem": [problem]}


def encode_files(
    paths: Sequence[Path], options: FileOptions, settings: Settings, sha256: str, pool: Pool
) -> Generator[Done]:
    """Encode files side by side; each result as it comes, in no order.

    A file whose actor dies is given to another, which goes on with the windows that are done.

    Raises:
        ray.exceptions.RayError: the cluster cannot run the actors.

    """
    names = [str(path.absolute()) for path in paths]
    files = ray.data.from_items(names, override_num_blocks=len(names))
    found = files.map_batches(
        FileEncoder,
        batch_size=1,
        fn_constructor_args=(options, settings, sha256),
        compute=ActorPoolStrategy(
            size=min(pool.actors, len(names)), max_tasks_in_flight_per_actor=1
        ),
        num_cpus=pool.cpus,
        num_gpus=pool.gpus or None,
    )
    for row in found.iter_rows():
        yield Done(row["source"], row["code"], row["problem"])


def _silent(_: str) -> None:
    """What an actor does is told by the run that started it."""
