"""Load generators in processes of their own: for a job, for several at once, or beside a block."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from testing.load import Job, Result


class LoadError(RuntimeError):
    """Failure of a load generator, or of a load's request."""


def generate(job: Job) -> Result:
    """Run one job.

    Raises:
        LoadError: the process ended early; with the last line of its standard error.

    """
    (result,) = generate_at_once([job])
    return result


def generate_at_once(jobs: Sequence[Job]) -> list[Result]:
    """Run each job in a process of its own; all begin once all are connected.

    Raises:
        LoadError: a process ended early; with the last line of its standard error.

    """
    with contextlib.ExitStack() as stack:
        generators = [stack.enter_context(_connected(job)) for job in jobs]
        for generator in generators:
            generator.begin()
        return [generator.result() for generator in generators]


@contextlib.contextmanager
def load_beside(job: Job) -> Iterator[Generator]:
    """Run a job during the block, and kill it at the end.

    Raises:
        LoadError: the generator ended before the block.

    """
    with _connected(job) as generator:
        generator.begin()
        yield generator
        if generator.process.poll() is not None:
            raise LoadError("the load generator ended before the work beside it")


def check_right(result: Result) -> Result:
    """Return the result if every request was answered right.

    Raises:
        LoadError: a request was not; with its outcome.

    """
    for outcome in result.outcomes:
        if outcome != "right":
            raise LoadError(f"a request of the load was not answered: {outcome}")
    return result


class Generator:
    """Process that runs `testing.load` and writes its result into a file."""

    def __init__(self, job: Job, folder: Path) -> None:
        self._path = folder / "result.json"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "testing.load", str(self._path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._say(json.dumps(asdict(job)))
        assert self.process.stdout is not None
        if not self.process.stdout.readline():
            raise _ended(self.process.communicate()[1])

    def begin(self) -> None:
        self._say("begin")

    def result(self) -> Result:
        _, errors = self.process.communicate()
        if self.process.returncode:
            raise _ended(errors)
        return Result(**json.loads(self._path.read_bytes()))

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()


def _ended(errors: str) -> LoadError:
    words = errors.strip().splitlines() or ["nothing"]
    return LoadError(f"the load generator ended: {words[-1]}")


@contextlib.contextmanager
def _connected(job: Job) -> Iterator[Generator]:
    with tempfile.TemporaryDirectory() as folder:
        generator = Generator(job, Path(folder))
        try:
            yield generator
        finally:
            generator.process.kill()
            generator.process.communicate()
