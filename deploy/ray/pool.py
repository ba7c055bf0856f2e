"""Actors of Ray Data, each with an engine, that encode files.

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
from service.cli.terminal import FAILURES, code_of, one_line
from service.files.local import start_engine
from service.files.options import FileOptions
from service.settings import Settings
from service.system import resources


@dataclass(frozen=True)
class Pool:
    """Number of actors, and the resources of each."""

    actors: int
    cpus: int
    gpus: float


class Done(NamedTuple):
    """Result of a file."""

    source: str
    code: int
    """Exit code of `headscope encode`."""
    problem: str
    """Error message; empty if the file is done."""


class FileEncoder:
    """Actor with an engine that encodes one file after another."""

    def __init__(self, options: FileOptions, settings: Settings, sha256: str) -> None:
        """Start the engine.

        Args:
            options: options of every file; `out` is any file of the corpus' folder.
            settings: settings of the model and its engine.
            sha256: digest of the artifact with which the run began.

        Raises:
            ModelError: the artifact is missing, differs from the run's, or does not fit the engine.
            ServiceError: the engine cannot be started.

        """
        resources.settle_allocator()
        artifact = open_artifact(settings, _silent)
        if artifact.sha256 != sha256:
            raise ArtifactError(f"{artifact.folder} is not the artifact that the run began with")
        self._options, self._settings = options, settings
        self._engine = start_engine(settings, artifact)

    def __call__(self, rows: dict[str, Any]) -> dict[str, list[Any]]:
        """Encode the file that a batch of one row names; return an error as part of the result."""
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
    """Encode files in parallel, and yield each result as it comes, in any order.

    If an actor dies, another actor takes its file and continues after the finished windows.

    Raises:
        ray.exceptions.RayError: the cluster cannot run the actors.

    """
    names = [str(path.absolute()) for path in paths]
    files = ray.data.from_items(names, override_num_blocks=len(names))
    results = files.map_batches(
        FileEncoder,
        batch_size=1,
        fn_constructor_args=(options, settings, sha256),
        compute=ActorPoolStrategy(
            size=min(pool.actors, len(names)), max_tasks_in_flight_per_actor=1
        ),
        num_cpus=pool.cpus,
        num_gpus=pool.gpus or None,
    )
    for row in results.iter_rows():
        yield Done(row["source"], row["code"], row["problem"])


def _silent(_: str) -> None:
    """Ignore an actor's steps: the run that started it logs them."""
