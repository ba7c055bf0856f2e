"""What a service says about itself: its models, and how exact they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from headscope.display import Shown
from headscope.tables import frame

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Difference:
    """How far a tensor of the engine is from PyTorch's, of all texts the worst."""

    max_abs_diff: float
    min_cosine: float
    atol: float
    rtol: float
    passed: bool
    cosine_at_least: float | None = None
    layer: int | None = None
    """Of a hidden state or of a map."""
    head: int | None = None
    """Of a map."""


@dataclass(frozen=True, repr=False)
class Verification(Shown):
    """Texts through PyTorch and through the engine, compared tensor by tensor."""

    passed: bool
    reference: str
    against: str
    inputs: int
    hidden: tuple[Difference, ...]
    attention: tuple[Difference, ...]
    pooled: Difference
    task: Difference | None
    """Of a model with a task head."""

    @property
    def differences(self) -> dict[str, tuple[Difference, ...]]:
        """Differences of all tensors, by kind."""
        task = {} if self.task is None else {"task": (self.task,)}
        kinds = {"hidden": self.hidden, "attention": self.attention, "pooled": (self.pooled,)}
        return kinds | task

    def to_pandas(self) -> DataFrame:
        """Return a table of the differences, a row a tensor.

        Raises:
            ImportError: pandas is not installed.

        """
        every = [(kind, one) for kind, found in self.differences.items() for one in found]
        columns = {
            name.name: [getattr(one, name.name) for _, one in every] for name in fields(Difference)
        }
        return frame({"tensor": [kind for kind, _ in every], **columns})

    def _facts(self) -> list[str]:
        most = {
            kind: max(one.max_abs_diff for one in found)
            for kind, found in self.differences.items()
            if found
        }
        passed = "passed" if self.passed else "failed"
        against = f"{self.against} against {self.reference}"
        largest = [f"{kind} ≤ {value:.1e}" for kind, value in most.items()]
        return [passed, against, f"{self.inputs} inputs", *largest]


@dataclass(frozen=True, repr=False)
class Info(Shown):
    """What a service says about a model; see `GET /info`."""

    model_id: str
    version: str
    max_input_length: int
    """Tokens of one text."""
    max_client_batch_size: int
    """Inputs of one request."""
    max_queue_tokens: int
    layers: int | None
    """None where nothing tells those of a foreign graph; so for the next two."""
    heads: int | None
    hidden_size: int | None
    embedding_dimension: int
    engine: str
    provider: str
    precision: str
    backend: str
    status: str
    """`working`, `degraded` or `failed`."""
    fields: Mapping[str, Any]
    """All of the reply, by its names."""
    decoder_layers: int | None = None
    """None without a decoder; so for the next one."""
    decoder_heads: int | None = None

    def _facts(self) -> list[str]:
        sizes = {"layers": self.layers, "heads": self.heads, "hidden_size": self.hidden_size}
        known = [f"{name} {size}" for name, size in sizes.items() if size is not None]
        engine = f"{self.engine} on {self.provider} in {self.precision}"
        return [repr(self.model_id), *known, engine, self.status]


@dataclass(frozen=True)
class ServedModel:
    """One of the models of a service."""

    id: str
    """Its name, for `model` of requests."""
    created: int
    """When its artifact came to be, in seconds since 1970."""
