"""`headscope bench`: speed and verdicts of artifacts, or of a model's precisions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from model.artifact.manifest import load_artifact
from service.cli import terminal
from service.cli.command import Choice, Command
from service.cli.options import setting, settings_of, settings_of_model
from service.cli.terminal import Exit, WrongUseError

EXAMPLES = """
headscope bench --model BAAI/bge-small-en-v1.5      the fastest precision here
headscope bench --artifact artifacts/fp32 --artifact artifacts/int8 --pairs pairs.csv
"""


def bench(artifact: tuple[Path, ...], pairs: Path | None, device: str, **options: Any) -> int:
    """Time artifacts in turn, or a model's precisions, and print a table of them."""
    from service.files.bench import fastest, measure, open_precisions, read_pairs, table

    if artifact and any(options.values()):
        raise WrongUseError("--artifact and --model exclude each other")
    settings = settings_of({"device": device}) if artifact else settings_of_model(options, device)
    rows = read_pairs(pairs) if pairs else []
    with terminal.steps() as say:
        artifacts = [*map(load_artifact, artifact)] or open_precisions(settings, say)
        measured = measure(artifacts, settings, rows)
    click.echo("\n".join(table(measured)))
    if not artifact:
        click.echo(fastest(measured))
    return Exit.DONE


command = Command(
    "bench",
    callback=bench,
    params=[
        click.Option(
            ["--artifact"],
            type=click.Path(path_type=Path),
            multiple=True,
            help="Artifact folder, in place of a model; repeat the flag to compare several.",
        ),
        setting("model", single=True, about="Hub name, name@revision or folder."),
        click.Option(
            ["--pairs"],
            type=click.Path(path_type=Path),
            help="CSV file with lines of sentence,sentence,score, which each artifact ranks.",
        ),
        click.Option(
            ["--device"],
            type=Choice(("auto", "cpu", "cuda")),
            default="auto",
            show_default=True,
            help="Device for the artifacts.",
        ),
    ],
    help="Time a model's precisions on this machine, or artifacts; print their verdicts, and how "
    "well they rank sentence pairs.",
    examples=EXAMPLES,
)
