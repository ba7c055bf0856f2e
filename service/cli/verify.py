"""`headscope verify`: compare an artifact's graphs with PyTorch, on a device."""

from __future__ import annotations

from pathlib import Path

import click

from model.artifact.manifest import load_artifact, passed_uses
from model.runtimes.contract import Device
from service.cli.command import Command
from service.cli.options import verification_device
from service.cli.terminal import verified
from service.system.distribution import EXPORTER, require

EXAMPLES = """
headscope verify --artifact artifacts/int8
headscope verify --artifact artifacts/fp16 --device cuda
"""


def run(artifact: Path, device: Device) -> int:
    """Verify and print a line for each tensor; fail if a use fails that passed at the export."""
    require("a verification", *EXPORTER)
    from model.export.verify import report, verify

    loaded = load_artifact(artifact)
    passed = True
    for tower in loaded.towers:
        if len(loaded.towers) > 1:
            click.echo(f"{tower.manifest.config.model_type}:")
        result = verify(tower, device)
        click.echo(report(result))
        record = result.record()
        kept = all(record.verdict(use).passed for use in passed_uses(tower.manifest))
        passed = passed and record.passed and kept
    return verified(passed)


command = Command(
    "verify",
    callback=run,
    params=[
        click.Option(
            ["--artifact"],
            type=click.Path(path_type=Path),
            required=True,
            help="Artifact folder.",
        ),
        verification_device(),
    ],
    help="Compare an artifact's ONNX graphs with PyTorch, and print the differences.",
    examples=EXAMPLES,
)
