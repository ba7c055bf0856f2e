"""Options of a run over files, their validation, and the arrays of each kind of output.

Notation: S tokens of one text, H hidden size, L layers, N heads, D output features.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.numerics.pooling import PoolingName
from model.numerics.quantization import VectorType
from service.inference.attention.statistics import STATISTICS
from service.inference.outputs.chunks import ChunkKind, ChunkOptions
from service.inference.outputs.declared import OUTPUTS
from service.inference.outputs.field import Field
from service.inference.tokenization.truncation import Direction

Kind = Literal["pooled", "chunks", "tokens", "sparse", "multivector", "stats", "importance"]
ONE_ARRAY: tuple[Kind, ...] = ("pooled", "importance")
"""Kinds of output that consist of one array of fixed shape."""
COLUMNAR = (".parquet", ".jsonl")
"""Suffixes of formats that keep the input's columns."""
ARRAYS = (".npy", ".npz", ".safetensors")
"""Suffixes of formats without columns."""


class UsageError(ValueError):
    """Mutually exclusive options, or invalid inputs; no work was done."""


@dataclass(frozen=True)
class Encoding:
    """Requested output of each text; `headscope encode --help` explains its fields."""

    kind: Kind = "pooled"
    layer: int = -1
    pooling: PoolingName | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    truncate: bool = False
    truncation_direction: Direction = "right"
    prompt_name: str | None = None
    task: str | None = None
    vector_type: VectorType = "float32"
    vector_ranges: tuple[tuple[float, ...], ...] | None = None
    """Lowest, then highest values of all features; the artifact's when None."""
    overflow: Literal["error", "truncate", "windows"] | None = None
    chunk_by: ChunkKind = "sentences"
    chunk_size: int = 256
    chunk_overlap: int | None = None
    late: bool = True
    first_frame: bool = False

    @property
    def cuts(self) -> bool:
        """Whether long texts are truncated."""
        return self.truncate or self.overflow == "truncate"

    @property
    def chunk(self) -> ChunkOptions:
        """Kind and sizes of the chunks."""
        size, overlap = self.chunk_size, self.chunk_overlap
        return ChunkOptions(self.chunk_by, size, size // 8 if overlap is None else overlap)

    def check(self) -> None:
        """Check the options of long texts against each other."""
        flags = self._given("chunk_by", "chunk_size", "chunk_overlap", "late")
        flags += ["--overflow windows"] if self.overflow == "windows" else []
        if flags and self.kind != "chunks":
            raise UsageError(f"{flags[0]} is of chunks: add --outputs chunks")
        if self.kind in ("sparse", "multivector") and self.layer != -1:
            raise UsageError(
                f"--layer {self.layer}: {self.kind} is computed from the last hidden state: leave "
                "it out"
            )
        if self.truncate and self.overflow not in (None, "truncate"):
            raise UsageError(f"--truncate and --overflow {self.overflow} exclude each other")
        if 2 * self.chunk.overlap > self.chunk_size:
            raise UsageError(
                f"--chunk-overlap {self.chunk_overlap} is more than half of --chunk-size "
                f"{self.chunk_size}"
            )
        if not self.late and (self.truncate or self.overflow):
            raise UsageError(
                "--truncate and --overflow are of a whole text, and with --no-late each chunk is "
                "encoded alone: leave them out"
            )

    def check_for_pictures(self) -> None:
        """Check that no option is for texts only."""
        if self.kind in ("chunks", "sparse", "multivector"):
            raise UsageError(f"--outputs {self.kind} is for texts, and the inputs are pictures")
        if flags := self._given("truncate", "overflow", "prompt_name", "task"):
            raise UsageError(f"{flags[0]} is for texts, and the inputs are pictures: leave it out")

    def _given(self, *names: str) -> list[str]:
        """Return the flags of options that differ from their defaults."""
        plain = Encoding()
        given = (name for name in names if getattr(self, name) != getattr(plain, name))
        return ["--no-late" if name == "late" else "--" + name.replace("_", "-") for name in given]


@dataclass(frozen=True)
class FileOptions:
    """Options of a run over files; `headscope encode --help` explains each."""

    inputs: tuple[str, ...]
    """Paths of files, globs, folders of pictures, and `-` for standard input."""
    out: Path
    column: str = "text"
    image_column: str | None = None
    encoding: Encoding = Encoding()
    on_error: Literal["stop", "skip"] = "stop"
    restart: bool = False
    url: str | None = None
    api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Check the options against each other."""
        kind, suffix = self.encoding.kind, self.out.suffix
        if suffix not in (*COLUMNAR, *ARRAYS):
            known = ", ".join((*COLUMNAR, *ARRAYS))
            raise UsageError(f"--out {self.out}: its ending must be one of {known}")
        if suffix == ".npy" and kind not in ONE_ARRAY:
            raise UsageError(
                f"a .npy file cannot hold {kind}: write .npz, .safetensors, .parquet or .jsonl"
            )
        self.encoding.check()
        if self.encoding.vector_type != "float32" and kind not in ("pooled", "chunks"):
            raise UsageError(f"--vector-type is a type of pooled vectors, not of {kind}")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise UsageError(f"--url {self.url} is not an address of http or https")

    @property
    def identity(self) -> dict[str, object]:
        """Options that determine the output's content, beside the inputs and the model."""
        columns = {"column": self.column, "image_column": self.image_column}
        return {**columns, **asdict(self.encoding)}


Array = NDArray[np.generic]
TextArrays = tuple[Array, ...]
"""Arrays of a text, in the order of its kind's fields."""
ROWS, ROW, LENGTHS = "rows", "row", "lengths"
"""Names of arrays of every part: the index of each text's row, from 0 over all inputs, the same as
a column of chunks, and the number of entries of each text in ragged fields."""


FINGERPRINT = "model_fingerprint"
"""Key of the model's fingerprint in the metadata of Parquet and safetensors files."""
NO_METADATA: Mapping[str, str] = {}


def vectors_of(output: str) -> list[Field]:
    """Return the fields of an output of /encode that are vectors, by their names in replies."""
    return [field for field in OUTPUTS[output].fields if not (field.fact or field.bounds_of)]


def _columns(output: str) -> tuple[Field, ...]:
    """Return the vectors of an output of /encode, by the names of their columns."""
    return tuple(replace(own, name=own.column or own.name) for own in vectors_of(output))


FIELDS: Mapping[Kind, tuple[Field, ...]] = {
    "pooled": _columns("pooled"),
    "chunks": (
        *(Field("start", "int64"), Field("end", "int64")),
        *(replace(own, ragged=False) for own in _columns("spans")),
    ),
    "tokens": (Field("token_ids", "int32", ("S",), ragged=True), *_columns("tokens")),
    "sparse": tuple(
        replace(own, dtype="int64") if own.dtype == "int32" else own for own in _columns("sparse")
    ),
    "multivector": _columns("multivector"),
    "stats": tuple(Field(name, "float32", ("L", "N")) for name in STATISTICS),
    "importance": (Field("importance", "float32", ("L", "N")),),
}
"""Kind of output → fields of a text; chunks have a row each, with `[n]`, `[n]` and `[n, D]`."""


def columns_of(kind: Kind) -> tuple[Field, ...]:
    """Return the columns that an output adds to the input's; chunks have the row of their text."""
    return (Field(ROW, "int64"), *FIELDS[kind]) if kind == "chunks" else FIELDS[kind]


def reserved_names(kind: Kind) -> frozenset[str]:
    """Return the names of the columns that an output adds to the input's."""
    return frozenset(field.name for field in columns_of(kind))


def joined(kind: Kind, rows: Sequence[int], texts: Sequence[TextArrays]) -> dict[str, Array]:
    """Concatenate the arrays of at least one text, with `LENGTHS` for ragged fields, and `ROWS`.

    `rows` has the index of each text's row; each chunk of a text has a row of its own.
    """
    columns: dict[str, Array] = {ROWS: np.array(rows, np.int64)}
    if kind == "chunks":
        columns[ROWS] = np.repeat(columns[ROWS], [len(text[0]) for text in texts])
        for field, *arrays in zip(FIELDS[kind], *texts, strict=True):
            columns[field.name] = np.concatenate(arrays)
        return columns
    for place, field in enumerate(FIELDS[kind]):
        arrays = [np.asarray(text[place], field.dtype or None) for text in texts]
        columns[field.name] = np.concatenate(arrays) if field.ragged else np.stack(arrays)
        if field.ragged:
            columns[LENGTHS] = np.array([len(array) for array in arrays], np.int64)
    return columns


PICTURE = "the picture"
"""Name of a picture in errors of this process."""


class Refused(NamedTuple):
    """Rejection of a text or picture that does not fit the model."""

    problem: str


def in_flags(error: object) -> str:
    """Return an error about fields of a request, or about an input, in terms of the command."""
    message = re.sub(rf"({PICTURE}|inputs\[\d+\](\.image)?): ", "", str(error))
    message = re.sub(r"inputs\[\d+\]", "the text", message)
    message = message.replace("set `first_frame` to true", "pass --first-frame")
    message = message.replace("outputs: multivector", "--outputs multivector")
    message = message.replace("`size`", "--chunk-size").replace("`late` false", "--no-late")
    return re.sub(
        r"`(\w+)`|\b(prompt_name|vector_type|vector_ranges)\b|^(task)(?=:)",
        lambda match: "--" + match[match.lastindex or 0].replace("_", "-"),
        message,
    )


Outcome = TextArrays | Refused
"""Arrays of a text, or its rejection."""
Pending = list[Future[list[tuple[int, Outcome]]]]
"""Batches of a window; each resolves to the texts' indices in the window and their outcomes."""


def batches_by_length(lengths: Sequence[int], most_tokens: int) -> list[list[int]]:
    """Group the indices of texts by length, with at most `most_tokens` tokens in each group.

    A longer text is a group of its own.
    """
    batches, tokens = list[list[int]](), 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if not batches or tokens + lengths[index] > most_tokens:
            batches.append([])
            tokens = 0
        batches[-1].append(index)
        tokens += lengths[index]
    return batches
