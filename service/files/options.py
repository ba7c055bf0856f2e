"""What a run over files is asked for, and which of it excludes each other."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from model.artifact.pooling import PoolingName
from service.inference.tokenization.excerpt import Direction

Kind = Literal["pooled", "tokens", "sparse", "stats", "importance"]
ONE_ARRAY: tuple[Kind, ...] = ("pooled", "importance")
"""Kinds of output that are one array of a fixed shape."""
COLUMNAR = (".parquet", ".jsonl")
"""Formats that keep the input's columns."""
ARRAYS = (".npy", ".npz", ".safetensors")
"""Formats of arrays alone."""


class UsageError(ValueError):
    """Options that exclude each other, or inputs that are none; nothing was begun."""


@dataclass(frozen=True)
class Encoding:
    """What is wanted of each text: the fields of `POST /encode`."""

    kind: Kind = "pooled"
    layer: int = -1
    pooling: PoolingName | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    truncate: bool = False
    truncation_direction: Direction = "right"
    prompt_name: str | None = None


@dataclass(frozen=True)
class FileOptions:
    """A run over files."""

    inputs: tuple[str, ...]
    """Paths, globs, and `-` for standard input."""
    out: Path
    column: str = "text"
    """Of the texts."""
    encoding: Encoding = Encoding()
    on_error: Literal["stop", "skip"] = "stop"
    restart: bool = False
    """Whether what an unfinished run left is thrown away, and a finished output replaced."""
    url: str | None = None
    """A running service, in place of an engine of its own."""
    api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Check the options against each other.

        Raises:
            UsageError: the output's format is unknown, or cannot hold what is asked for.

        """
        kind, suffix = self.encoding.kind, self.out.suffix
        if suffix not in (*COLUMNAR, *ARRAYS):
            known = ", ".join((*COLUMNAR, *ARRAYS))
            raise UsageError(f"--out {self.out}: its ending must be one of {known}")
        if suffix == ".npy" and kind not in ONE_ARRAY:
            raise UsageError(
                f"one array does not hold {kind}: write .npz, .safetensors, .parquet or .jsonl"
            )
        if self.url and not self.url.startswith(("http://", "https://")):
            raise UsageError(f"--url {self.url} is not an address of http or https")

    @property
    def identity(self) -> dict[str, Any]:
        """What the output's content follows from, beside the inputs and the model."""
        return {"column": self.column, **asdict(self.encoding)}
