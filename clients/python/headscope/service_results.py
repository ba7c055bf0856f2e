"""Information about a service: its models, and their verification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from headscope.display import Shown, frame

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Difference:
    """Largest difference of an engine's tensor from PyTorch's, over all texts."""

    max_abs_diff: float
    min_cosine: float
    atol: float
    rtol: float
    passed: bool
    cosine_at_least: float | None = None
    layer: int | None = None
    """Layer of a hidden state or map; None for other tensors."""
    head: int | None = None
    """Head of a map; None for other tensors."""


@dataclass(frozen=True, repr=False)
class Verification(Shown):
    """Comparison of an engine with PyTorch on some texts, tensor by tensor."""

    passed: bool
    reference: str
    against: str
    inputs: int
    hidden: tuple[Difference, ...]
    attention: tuple[Difference, ...]
    pooled: Difference
    task: Difference | None
    """Difference of the task head's outputs; None without a task head."""

    @property
    def differences(self) -> dict[str, tuple[Difference, ...]]:
        """Differences of all tensors, by kind."""
        task = {} if self.task is None else {"task": (self.task,)}
        kinds = {"hidden": self.hidden, "attention": self.attention, "pooled": (self.pooled,)}
        return kinds | task

    def to_pandas(self) -> DataFrame:
        """Return a table of the differences, with a row per tensor.

        Raises:
            ImportError: pandas is not installed.

        """
        pairs = [(kind, d) for kind, several in self.differences.items() for d in several]
        columns = {
            name.name: [getattr(d, name.name) for _, d in pairs] for name in fields(Difference)
        }
        return frame({"tensor": [kind for kind, _ in pairs], **columns})

    def _facts(self) -> list[str]:
        most = {
            kind: max(difference.max_abs_diff for difference in differences)
            for kind, differences in self.differences.items()
            if differences
        }
        passed = "passed" if self.passed else "failed"
        against = f"{self.against} against {self.reference}"
        largest = [f"{kind} ≤ {value:.1e}" for kind, value in most.items()]
        return [passed, against, f"{self.inputs} inputs", *largest]


@dataclass(frozen=True, repr=False)
class Info(Shown):
    """Information of a service about a model; see `GET /info`."""

    model_id: str
    version: str
    max_input_length: int
    """Maximum tokens of one text."""
    max_client_batch_size: int
    """Maximum number of inputs of one request."""
    max_queue_tokens: int
    layers: int | None
    """Number of layers; None for a static embedding, which has no layers and heads."""
    heads: int | None
    hidden_size: int | None
    embedding_dimension: int
    engine: str
    provider: str
    precision: str
    backend: str
    status: str
    """Status of the service: `working`, `degraded` or `failed`."""
    fields: Mapping[str, Any]
    """All fields of the reply, by their names."""
    decoder_layers: int | None = None
    """Number of layers of the decoder; None without a decoder. So for the next one."""
    decoder_heads: int | None = None

    @property
    def picture_tokens(self) -> int:
        """Number of tokens of a picture: patches and special tokens."""
        images = self.fields.get("images")
        if not isinstance(images, Mapping):
            return self.max_input_length
        rows, columns = images["grid"]
        return rows * columns + len(images["special_tokens"])

    def _facts(self) -> list[str]:
        sizes = {"layers": self.layers, "heads": self.heads, "hidden_size": self.hidden_size}
        known = [f"{name} {size}" for name, size in sizes.items() if size is not None]
        engine = f"{self.engine} on {self.provider} in {self.precision}"
        return [repr(self.model_id), *known, engine, self.status]


@dataclass(frozen=True)
class ServedModel:
    """Model of a service."""

    id: str
    """Name of the model, for `model` in requests."""
    created: int
    """Time when its artifact was created, in seconds since 1970."""
