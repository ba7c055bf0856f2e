"""`headscope encode`: encode the texts of files into a file of vectors."""

from __future__ import annotations

import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import click
import numpy as np

from service.cli.command import Choice, Command
from service.cli.options import given, literals, setting, settings_of
from service.cli.terminal import WrongUseError
from service.files.options import Encoding, FileOptions, UsageError
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
LEAST = {"dimensions": 1, "chunk_size": 1, "chunk_overlap": 0}
HELP = {
    "Files": {
        "out": "Output file: .parquet, .npy, .npz, .safetensors or .jsonl.",
        "column": "Column of the texts.",
        "image_column": "Column of the paths of pictures, which are encoded in place of texts.",
        "on_error": "Action at a row without a text or picture that the model can read.",
        "first_frame": "Encode the first frame of animated pictures, which are refused otherwise.",
        "restart": "Discard an unfinished run, or replace a finished output.",
    },
    "Vectors": {
        "kind": "A vector for each text or for each of its chunks, vectors of tokens, weights of "
        "words, vectors of late interaction, statistics of each head, or the change of a text's "
        "vector without each head.",
        "layer": "Hidden state, 0 … L.",
        "pooling": "The checkpoint's by default.",
        "normalize": "Return unit vectors; the checkpoint's choice by default.",
        "dimensions": "Number of leading features.",
        "vector_type": "Type of a text's vector; binary vectors have eight features in a byte.",
        "vector_ranges": ".npy file [2, D]: lowest and highest value of each feature, for int8 and "
        "uint8; the artifact's by default.",
        "truncate": "Truncate long texts.",
        "overflow": "Action at a text that is too long; windows, for chunks, encode all of it.",
        "truncation_direction": "Side to cut.",
        "prompt_name": "Name of a prompt of the checkpoint.",
        "task": "Task of a model that has several (jina-embeddings-v3).",
    },
    "Chunks": {
        "chunk_by": "Where chunks end if they can.",
        "chunk_size": "Maximum tokens of a chunk.",
        "chunk_overlap": "Maximum tokens that a chunk repeats; an eighth of the size by default.",
        "late": "Pool chunks from one pass over the whole text, or encode each alone.",
    },
    "Service": {
        "url": "URL of a running service to use in place of an engine.",
        "api_key": "API key of the service; by default the first of HEADSCOPE_API_KEYS.",
    },
}
"""Group of help → field of `FileOptions` or `Encoding` → help of its option."""


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
    from service.files.run import run

    try:
        return run(file_options(options), settings, _say)
    except UsageError as error:
        raise WrongUseError(str(error)) from None


def file_options(options: dict[str, Any]) -> FileOptions:
    """Return the options of a run from the parameters of the command."""
    own = {name: value for name, value in options.items() if hasattr(Encoding, name)}
    rest = {name: value for name, value in options.items() if name not in own}
    return FileOptions(encoding=Encoding(**own), **rest)


def _say(step: str) -> None:
    """Print a message, above the bar of progress if there is one."""
    from tqdm import tqdm

    tqdm.write(f"headscope: {printable(step)}", file=sys.stderr)


class Ranges(click.ParamType[tuple[tuple[float, ...], ...]]):
    """Ranges of features, by the path of their .npy file."""

    name = "file"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[tuple[float, ...], ...]:
        """Return the ranges of a file."""
        try:
            ranges = np.load(value, allow_pickle=False).astype(np.float32)
        except (ValueError, OSError) as error:
            self.fail(f"{value} is not a .npy file: {error}", param, ctx)
        if ranges.ndim != 2 or len(ranges) != 2:
            self.fail(f"{value} has the shape {ranges.shape}; [2, D] is needed", param, ctx)
        return tuple(tuple(row.tolist()) for row in ranges)


class FieldOption(click.Option):
    """Option of a field of `FileOptions` or `Encoding`, with its type, choices and default."""

    def __init__(self, name: str, group: str, about: str) -> None:
        kind = Encoding if hasattr(Encoding, name) else FileOptions
        annotation = get_type_hints(kind)[name]
        default = {own.name: own.default for own in fields(kind)}[name]
        flag = "--outputs" if name == "kind" else "--" + name.replace("_", "-")
        switch = bool in (annotation, *get_args(annotation))
        if switch and default is not False:
            flag += f"/--no-{flag[2:]}"
        super().__init__(
            [flag, name],
            type=None if switch else _type_of(name, annotation),
            is_flag=switch,
            required=default is MISSING,
            default=None if default is MISSING else default,
            show_default=default not in (None, False, MISSING),
            help=about,
        )
        self.group = group


def _type_of(name: str, annotation: object) -> click.ParamType[Any]:
    if words := tuple(literals(annotation)):
        return Choice(words)
    if name == "vector_ranges":
        return Ranges()
    if annotation is Path:
        return click.Path(path_type=Path)
    if int in (annotation, *get_args(annotation)):
        return click.IntRange(LEAST[name]) if name in LEAST else click.INT
    return click.STRING


command = Command(
    "encode",
    callback=encode,
    params=[
        click.Argument(["inputs"], nargs=-1, required=True, metavar="INPUT..."),
        *(FieldOption(name, group, HELP[group][name]) for group in HELP for name in HELP[group]),
        *(setting(name, single=name in SINGLE, about=SINGLE.get(name, "")) for name in SETTINGS),
    ],
    help="Encode the texts of files, or pictures, into one file. INPUT is a .txt (one text a "
    "line), .jsonl, .csv or .parquet file, a picture, a folder of pictures, a quoted glob, or - "
    "for lines of standard input. The same command resumes an interrupted run.",
    examples=EXAMPLES,
)
