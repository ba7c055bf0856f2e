"""`headscope export`: export an artifact of a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from model.artifact.manifest import load_artifact
from model.runtimes.registry import check_device, runtime_of
from model.sources.overlay import with_image_size
from service.artifacts.opening import (
    export_to,
    find_checkpoint,
    open_artifact,
    precision_note,
    require_exporter,
)
from service.cli import terminal
from service.cli.command import Command
from service.cli.options import setting, settings_of_model, verification_device
from service.cli.terminal import WrongUseError, verified
from service.settings import Settings
from service.settings.served import checkpoint_of

EXAMPLES = """
headscope export --model BAAI/bge-small-en-v1.5 --out artifacts/bge
headscope export --precision int8 --out artifacts/int8
headscope export --image-size 336x448 --out artifacts/wide   pictures of another size
headscope export --serving-only --out artifacts/small    without PyTorch's weights
"""
Progress = Callable[[str], None]


def export(
    out: Path | None,
    device: str,
    *,
    serving_only: bool,
    image_size: tuple[int, int] | None,
    **options: Any,
) -> int:
    """Export, verify, and print the artifact's folder."""
    settings = settings_of_model(options, device)
    if image_size and (out is None or serving_only):
        raise WrongUseError(
            "--image-size needs --out, and not --serving-only: the cache keeps artifacts of the "
            "checkpoint's own size"
        )
    if serving_only and out is None:
        raise WrongUseError("--serving-only needs --out: the cache keeps whole artifacts")
    with terminal.steps() as say:
        folder, passed = _export(settings, None if serving_only else out, say, image_size)
        if serving_only and out is not None:
            from model.export.serving import serving_copy

            folder = serving_copy(load_artifact(folder), out).folder
    click.echo(folder)
    return verified(passed)


def _export(
    settings: Settings,
    out: Path | None,
    say: Progress,
    image_size: tuple[int, int] | None,
) -> tuple[Path, bool]:
    """Export an artifact, and return its folder and whether its verification passed."""
    require_exporter(checkpoint_of(settings), settings.precision)
    check_device(runtime_of(settings.precision), settings.device)
    if note := precision_note(settings.precision):
        say(note)
    if out is None:
        return open_artifact(settings, say).folder, True
    checkpoint = find_checkpoint(settings, say)
    if image_size:
        checkpoint = with_image_size(checkpoint, image_size, settings.cache("image-sizes"))
    artifact = export_to(out, settings, checkpoint, say)
    return artifact.folder, artifact.passed


class ImageSize(click.ParamType[tuple[int, int]]):
    """Height and width of pictures in pixels."""

    name = "HEIGHTxWIDTH"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Return the height and the width."""
        match = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", value)
        if match is None:
            self.fail(f"{value!r} is not a height and a width in pixels, as 224x224", param, ctx)
        return int(match[1]), int(match[2])


command = Command(
    "export",
    callback=export,
    params=[
        setting("model", single=True, about="Hub name, name@revision, or folder."),
        setting("revision"),
        setting("pooling"),
        setting("pickle"),
        click.Option(
            ["--out"],
            type=click.Path(path_type=Path),
            help="Folder of the artifact.",
            show_default="in the cache",
        ),
        setting(
            "precision",
            about="fp32 is exact; fp16 is for GPUs; bf16 and int8 are faster on CPUs, by OpenVINO; "
            "headscope bench measures which is the fastest here.",
        ),
        click.Option(
            ["--image-size"],
            type=ImageSize(),
            metavar="HEIGHTxWIDTH",
            help="Size to which pictures are resized, in place of the checkpoint's; its positions "
            "are interpolated.",
        ),
        click.Option(
            ["--serving-only"],
            is_flag=True,
            help="Omit the float32 weights that only PyTorch and decompositions read from --out; "
            "the whole artifact stays in the cache.",
        ),
        verification_device(),
    ],
    help="Export a checkpoint as an artifact, verify it against PyTorch, and print its folder.",
    examples=EXAMPLES,
)
