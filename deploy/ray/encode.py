"""`headscope encode` over a corpus of Parquet files: `python -m deploy.ray.encode --help`."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import ray

from deploy.ray.corpus import CorpusFolder, corpus_files, job_of, unfinished
from deploy.ray.pool import Done, Pool, encode_files
from service.artifacts.opening import open_artifact
from service.cli import encode as single
from service.cli import terminal
from service.cli.command import Command
from service.cli.options import given, settings_of
from service.cli.terminal import FAILURES, Exit, WrongUseError, code_of, one_line
from service.files.options import FileOptions, UsageError
from service.files.run import DONE, SKIPPED
from service.settings import Settings

NAME = "python -m deploy.ray.encode"
EXAMPLES = f"""
{NAME} 'corpus/*.parquet' --out vectors --actors 4 --cpus 2
{NAME} 'corpus/*.parquet' --out vectors --actors 8 --gpus 0.5
"""
OTHERS = {"inputs", "out", "url", "api_key"}
"""Parameters of `headscope encode` that a corpus lacks or defines itself."""


def encode(**options: Any) -> int:
    """Encode a corpus, or resume a stopped run with the same options; return the exit code."""
    pool = Pool(*(options.pop(name) for name in ("actors", "cpus", "gpus")))
    settings = settings_of(given({name: options.pop(name) for name in single.SETTINGS}))
    own = {"threads": settings.threads or pool.cpus, "api_keys": None}  # no key goes to the cluster
    settings = settings.model_copy(update=own)
    options["out"] = options["out"].absolute() / "corpus.parquet"
    try:
        return run(single.file_options(options), settings, pool)
    except UsageError as error:
        raise WrongUseError(str(error)) from None


def run(options: FileOptions, settings: Settings, pool: Pool) -> int:
    """Dispatch files to actors until all are encoded or one has failed; return the exit code.

    Raises:
        UsageError: options, inputs and unfinished work do not match.
        ModelError: the model cannot be loaded.
        ray.exceptions.RayError: the cluster cannot run the actors.

    """
    paths = corpus_files(options)
    artifact = open_artifact(settings, _say)
    options.out.parent.mkdir(exist_ok=True)
    folder = CorpusFolder(options.out.parent)
    with folder.held(restart=options.restart):
        folder.begin(job_of(options, settings, artifact))
        left = unfinished(folder, paths)
        _say(f"{len(paths) - len(left)} of {len(paths)} files are done")
        if left:
            ray.init(ignore_reinit_error=True)
            results = encode_files(left, options, settings, artifact.sha256, pool)
            with closing(results):
                for number, done in enumerate(results, len(paths) - len(left) + 1):
                    _report(done, number, len(paths))
                    if done.problem:
                        return done.code
        receipts = [folder.receipt(path) for path in paths]
    skipped = any(receipt is not None and receipt.code == SKIPPED for receipt in receipts)
    return SKIPPED if skipped else DONE


def _report(done: Done, number: int, count: int) -> None:
    if done.problem:
        terminal.fail(NAME, f"{done.source}: {done.problem}")
    else:
        _say(f"{number} of {count} files: {done.source}")


def _say(step: str) -> None:
    click.echo(f"headscope: {step}", err=True)


command = Command(
    NAME,
    callback=encode,
    params=[
        click.Argument(["inputs"], nargs=-1, required=True, metavar="INPUT..."),
        click.Option(
            ["--out"],
            type=click.Path(path_type=Path, file_okay=False),
            required=True,
            help="Folder that all nodes see; a file's vectors have the same name there.",
        ),
        click.Option(
            ["--actors"],
            type=click.IntRange(1),
            default=1,
            show_default=True,
            help="Maximum number of actors, each with an engine; fewer run if the cluster is full.",
        ),
        click.Option(
            ["--cpus"],
            type=click.IntRange(1),
            default=1,
            show_default=True,
            help="Processors of an actor, and the number of batches that it computes at once.",
        ),
        click.Option(
            ["--gpus"],
            type=click.FloatRange(0),
            default=0.0,
            show_default=True,
            help="GPUs of an actor; a fraction shares a GPU.",
        ),
        *(param for param in single.command.params if param.name not in OTHERS),
    ],
    help="Encode the texts of Parquet files, each into a file of the same name, by actors of a Ray "
    "cluster. INPUT is a .parquet file or a glob in quotes; a file's output is that of `headscope "
    "encode`. The same command resumes a stopped run, and includes files that were added.",
    examples=EXAMPLES,
)


def main() -> int:
    """Run the command and return the exit code."""
    try:
        return int(command.main(standalone_mode=False))
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.UsageError as error:
        terminal.fail(NAME, error.format_message())
        return Exit.WRONG_USE
    except KeyboardInterrupt:
        terminal.fail(NAME, "interrupted; the same command resumes the run")
        return Exit.INTERRUPTED
    except (*FAILURES, ray.exceptions.RayError) as error:
        terminal.fail(NAME, one_line(error))
        return code_of(error)


if __name__ == "__main__":
    sys.exit(main())
