"""`headscope bench`: rank correlation of artifacts on scored sentence pairs, and their speed."""

from __future__ import annotations

from pathlib import Path

import click

from model.artifact.manifest import load_artifact
from model.runtimes.contract import Device
from service.cli.command import Choice, Command
from service.cli.exits import Exit

EXAMPLES = """
headscope bench --artifact artifacts/int8 --pairs pairs.csv
headscope bench --artifact artifacts/fp32 --artifact artifacts/int8 --pairs pairs.csv
"""


def bench(artifact: tuple[Path, ...], pairs: Path, device: Device) -> int:
    """Score artifacts on the pairs; several artifacts are timed in turn and printed as a table."""
    from service.engines.onnx import OnnxEngine
    from service.measuring.evaluation import compare, score, standings, verdicts, words

    artifacts = [load_artifact(folder) for folder in artifact]
    if len(artifacts) > 1:
        compared = compare(artifacts, device, pairs)
        click.echo("\n".join(standings(artifacts, compared)))
        return Exit.DONE
    (only,) = artifacts
    engine = OnnxEngine(only, device)
    result = score(only, engine, pairs)
    click.echo(
        f"{only.manifest.precision}, {engine.provider}: Spearman {100 * result.spearman:.2f} "
        f"over {result.pairs} pairs, {result.texts_per_second:.0f} texts/s"
    )
    vectors, heads = words(only.manifest)
    click.echo("\n".join([f"vectors {vectors}, heads {heads}", *verdicts([only.manifest])]))
    return Exit.DONE


command = Command(
    "bench",
    callback=bench,
    params=[
        click.Option(
            ["--artifact"],
            type=click.Path(path_type=Path),
            required=True,
            multiple=True,
            help="Artifact folder; repeat the flag to compare several.",
        ),
        click.Option(
            ["--pairs"],
            type=click.Path(path_type=Path),
            required=True,
            help="CSV file with lines of sentence,sentence,score.",
        ),
        click.Option(
            ["--device"],
            type=Choice(("auto", "cpu", "cuda")),
            default="auto",
            show_default=True,
            help="Device for the artifacts.",
        ),
    ],
    help="Score one or several artifacts on sentence pairs, and time them.",
    examples=EXAMPLES,
)
