"""Capabilities of artifacts beside an encoder's forward pass, and the error for a lacking one.

An artifact declares its capabilities (`declared`). A runtime implements each of them, itself or in
one of its `parts` (`find`).

Notation as in `model.runtimes.contract`. In `attention`, T and S are the numbers of query and key
states.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from model.artifact.decomposition import DecomposedRows, DecompositionStep
from model.artifact.manifest import Manifest
from model.artifact.signature import MapKind
from model.config.decoder import DecoderConfig
from model.errors import ModelError
from model.numerics.batch import Ids
from model.numerics.task_head import TaskConfig
from model.runtimes.contract import Decoding, Floats, Heads, Runtime


class Decomposition(ABC):
    """Shares of the input tokens in hidden states."""

    @abstractmethod
    def decompose(self, step: DecompositionStep) -> DecomposedRows:
        """Propagate input tokens' shares in states of one text through one layer, in float32.

        The host computes them by the float32 weights, for every precision and device.
        """


class Decoder(ABC):
    """Decoder over the encoder's last hidden state; L_d and N_d take the place of L and N."""

    config: DecoderConfig
    heads: Mapping[MapKind, Heads]
    """Heads of the decoder's self-attention and of its cross-attention, which compute no scores."""

    @abstractmethod
    def decode(self, asked: Decoding) -> tuple[list[Floats], list[Floats]]:
        """Return decoder states and cross-attention's query states of one pass over all targets.

        They are `[T, H]` per state, and `[T, H]` per layer's query states, in the order requested.
        """

    @abstractmethod
    def logprobs(self, rows: Floats, labels: Ids) -> Floats:
        """Return the log-probability of each label, given all labels before it.

        Rows `[n, H]` of the decoder's last hidden state, labels `[n]`, one per row → `[n]`.
        """


@dataclass(frozen=True)
class TaskHead:
    """Task head over hidden states."""

    config: TaskConfig
    score: Callable[[Floats], Floats]
    """Function from rows `[n, H]`, one per text or per token, to outputs `[n, C]`.

    For sparse vectors, the rows are the tokens of one text, and the output is `[1, V]`. See
    `model.artifact.scores`.
    """


Capability = TypeVar("Capability")


def find(runtime: Runtime, kind: type[Capability]) -> Capability | None:
    """Return the runtime's part with a capability, such as `Heads`; None without one."""
    if isinstance(runtime, kind):
        return runtime
    return next((part for part in runtime.parts if isinstance(part, kind)), None)


def capability(runtime: Runtime, kind: type[Capability]) -> Capability:
    """Return the runtime's part with a capability.

    Raises:
        ModelError: the artifact does not declare it.

    """
    if (part := find(runtime, kind)) is None:
        raise ModelError(f"{runtime.provider}: the artifact does not declare {kind.__name__}")
    return part


_OF_LAYERS: Mapping[type, str] = {
    Heads: "attention weights",
    Decomposition: "shares of input tokens",
}
"""Capability → noun for its output, in the error of a static embedding."""
_OTHER: Mapping[type, str] = {
    Decoder: "the artifact has no decoder: export a checkpoint that has one, such as a "
    "MarianMTModel",
    TaskHead: "the artifact has no task head to score with: export a checkpoint that has one, "
    "such as a …ForSequenceClassification",
}
"""Capability → error of an artifact that is neither static nor serving-only."""


def declared(manifest: Manifest) -> frozenset[type]:
    """Return the capabilities of an artifact."""
    if manifest.static:
        return frozenset()
    kinds: set[type] = {Heads}
    if not manifest.serving_only:
        kinds.add(Decomposition)
    if manifest.decoder:
        kinds.add(Decoder)
    if manifest.task:
        kinds.add(TaskHead)
    return frozenset(kinds)


def lacking(manifest: Manifest, kind: type) -> str | None:
    """Return the error message, with the remedy, if an artifact lacks a capability."""
    if kind in declared(manifest):
        return None
    if manifest.static and kind in _OF_LAYERS:
        return _not_in_table(_OF_LAYERS[kind])
    return _left_out("a decomposition") if kind is Decomposition else _OTHER[kind]


def lacking_weights(manifest: Manifest, needing: str = "PyTorch") -> str | None:
    """Return the error message, with the remedy, if an artifact lacks the float32 weights.

    `needing` is the feature that needs them, as a singular noun.
    """
    if manifest.serving_only:
        return _left_out(needing)
    return _not_in_table("what PyTorch computes with") if manifest.static else None


def _not_in_table(what: str) -> str:
    return (
        "this model is a static embedding, a table without layers and heads, which gives one "
        f"vector a token alone, not {what}: serve a transformer encoder"
    )


def _left_out(needing: str) -> str:
    return (
        f"this artifact was exported with --serving-only, without the float32 weights that "
        f"{needing} needs: serve an export without --serving-only"
    )
