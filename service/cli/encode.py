"""`headscope encode`: encode the texts of files into a file of vectors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, get_args

import click

from model.numerics.pooling import PoolingName
from model.numerics.quantization import VECTOR_TYPES
from service.cli.command import Choice, Command
from service.cli.options import given, setting, settings_of
from service.cli.terminal import WrongUseError
from service.system import resources
from service.system.logs import printable

EXAMPLES = """
headscope encode reviews.csv --column body --out reviews.parquet
headscope encode 'texts/*.txt' --out vectors.npy --model BAAI/bge-small-en-v1.5
headscope encode rows.jsonl --out rows.safetensors --outputs tokens --truncate
headscope encode books.parquet --out chunks.parquet --outputs chunks --overflow windows
headscope encode rows.parquet --out out.parquet --url http://localhost:8000 --on-error skip
headscope encode photos/ --out vectors.parquet --model facebook/dinov2-small --on-error skip
zcat texts.gz | headscope encode - --out vectors.npz
"""
SETTINGS = (
    *("model", "revision", "artifact", "precision", "allow_unverified"),
    *("device", "device_id", "devices", "device_memory_bytes", "threads", "max_batch_tokens"),
    *("max_length", "max_characters", "max_image_pixels", "max_image_bytes"),
)
SINGLE = {
    "model": "Hub name, name@revision, or folder.",
    "artifact": "Exported artifact folder, in place of a model.",
}
"""Setting that accepts several values for `serve` → help of the single value here."""


def encode(**options: Any) -> int:
    """Encode the inputs, or resume a run with the same options."""
    flags = given({name: options.pop(name) for name in SETTINGS})
    if options["url"] and flags:
        named = ", ".join("--" + name.replace("_", "-") for name in flags)
        raise WrongUseError(f"--url asks a service, which has its own {named}")
    settings = settings_of(flags)
    if settings.api_keys and options["api_key"] is None:
        options["api_key"] = settings.api_keys.split(",")[0].strip()
    resources.settle_allocator()
    from service.files.options import Encoding, FileOptions, UsageError
    from service.files.run import run

    if options["vector_ranges"] is not None:
        options["vector_ranges"] = _ranges(options["vector_ranges"])
    fields = {name: options.pop(name) for name in Encoding.__dataclass_fields__ if name != "kind"}
    try:
        chosen = FileOptions(encoding=Encoding(options.pop("outputs"), **fields), **options)
        return run(chosen, settings, _say)
    except UsageError as error:
        raise WrongUseError(str(error)) from None


def _ranges(path: Path) -> tuple[tuple[float, ...], ...]:
    """Return the ranges of a .npy file."""
    import numpy as np

    try:
        ranges = np.load(path, allow_pickle=False).astype(np.float32)
    except (ValueError, OSError) as error:
        raise WrongUseError(f"--vector-ranges {path} is not a .npy file: {error}") from None
    if ranges.ndim != 2 or len(ranges) != 2:
        raise WrongUseError(
            f"--vector-ranges {path} has the shape {ranges.shape}; [2, D] is needed"
        )
    return tuple(tuple(row.tolist()) for row in ranges)


def _say(step: str) -> None:
    """Print a message, above the bar of progress if there is one."""
    from tqdm import tqdm

    tqdm.write(f"headscope: {printable(step)}", file=sys.stderr)


class _Option(click.Option):
    """Option in a group of help that is not a setting."""

    def __init__(self, group: str, *words: str, **attributes: Any) -> None:
        known = attributes.get("default") is not None
        super().__init__([*words], show_default=known, **attributes)
        self.group = group


FILES, VECTORS, CHUNKS, SERVICE = "Files", "Vectors", "Chunks", "Service"
command = Command(
    "encode",
    callback=encode,
    params=[
        click.Argument(["inputs"], nargs=-1, required=True, metavar="INPUT..."),
        _Option(
            FILES,
            "--out",
            type=click.Path(path_type=Path),
            required=True,
            help="Output file: .parquet, .npy, .npz, .safetensors or .jsonl.",
        ),
        _Option(FILES, "--column", default="text", help="Column of the texts."),
        _Option(
            FILES,
            "--image-column",
            help="Column of the paths of pictures, which are encoded in place of texts.",
        ),
        _Option(
            FILES,
            "--on-error",
            type=Choice(("stop", "skip")),
            default="stop",
            help="Action at a row without a text or picture that the model can read.",
        ),
        _Option(
            FILES,
            "--first-frame",
            is_flag=True,
            help="Encode the first frame of animated pictures, which are refused otherwise.",
        ),
        _Option(
            FILES,
            "--restart",
            is_flag=True,
            help="Discard an unfinished run, or replace a finished output.",
        ),
        _Option(
            VECTORS,
            "--outputs",
            type=Choice(
                ("pooled", "chunks", "tokens", "sparse", "multivector", "stats", "importance")
            ),
            default="pooled",
            help="A vector for each text or for each of its chunks, vectors of tokens, weights of "
            "words, vectors of late interaction, statistics of each head, or the change of a "
            "text's vector without each head.",
        ),
        _Option(VECTORS, "--layer", type=int, default=-1, help="Hidden state, 0 … L."),
        _Option(
            VECTORS,
            "--pooling",
            type=Choice(get_args(PoolingName)),
            help="The checkpoint's by default.",
        ),
        _Option(
            VECTORS,
            "--normalize/--no-normalize",
            default=None,
            help="Return unit vectors; the checkpoint's choice by default.",
        ),
        _Option(
            VECTORS, "--dimensions", type=click.IntRange(1), help="Number of leading features."
        ),
        _Option(
            VECTORS,
            "--vector-type",
            type=Choice(VECTOR_TYPES),
            default="float32",
            help="Type of a text's vector; binary vectors have eight features in a byte.",
        ),
        _Option(
            VECTORS,
            "--vector-ranges",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help=".npy file [2, D]: lowest and highest value of each feature, for int8 and uint8; "
            "the artifact's by default.",
        ),
        _Option(VECTORS, "--truncate", is_flag=True, help="Truncate long texts."),
        _Option(
            VECTORS,
            "--overflow",
            type=Choice(("error", "truncate", "windows")),
            help="Action at a text that is too long; windows, for chunks, encode all of it.",
        ),
        _Option(
            CHUNKS,
            "--chunk-by",
            type=Choice(("tokens", "sentences", "paragraphs")),
            default="sentences",
            help="Where chunks end if they can.",
        ),
        _Option(
            CHUNKS,
            "--chunk-size",
            type=click.IntRange(1),
            default=256,
            help="Maximum tokens of a chunk.",
        ),
        _Option(
            CHUNKS,
            "--chunk-overlap",
            type=click.IntRange(0),
            help="Maximum tokens that a chunk repeats; an eighth of the size by default.",
        ),
        _Option(
            CHUNKS,
            "--late/--no-late",
            default=True,
            help="Pool chunks from one pass over the whole text, or encode each alone.",
        ),
        _Option(
            VECTORS,
            "--truncation-direction",
            type=Choice(("right", "left")),
            default="right",
            help="Side to cut.",
        ),
        _Option(VECTORS, "--prompt-name", help="Name of a prompt of the checkpoint."),
        _Option(VECTORS, "--task", help="Task of a model that has several (jina-embeddings-v3)."),
        _Option(SERVICE, "--url", help="URL of a running service to use in place of an engine."),
        _Option(
            SERVICE,
            "--api-key",
            help="API key of the service; by default the first of HEADSCOPE_API_KEYS.",
        ),
        *(setting(name, single=name in SINGLE, about=SINGLE.get(name, "")) for name in SETTINGS),
    ],
    help="Encode the texts of files, or pictures, into one file. INPUT is a .txt (one text a "
    "line), .jsonl, .csv or .parquet file, a picture, a folder of pictures, a quoted glob, or - "
    "for lines of standard input. The same command resumes an interrupted run.",
    examples=EXAMPLES,
)
