"""Tokenised texts of a request, options of the requested arrays, and the computed arrays.

Notation: S tokens of one text, H hidden size, L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from model.artifact.manifest import Manifest
from model.config.precision import Use
from model.numerics.pooling import PoolingModes, PoolingName
from model.numerics.quantization import FLOAT32, Quantization
from service.engines.contract import Ablated, Floats
from service.inference.head_vectors import HeadVectors, SparseVector
from service.inference.text_spans import TextSpans
from service.inference.text_warnings import Warnings
from service.inference.timings import Timings
from service.inference.tokenization.inputs import Input, characters
from service.inference.tokenization.text import Places, Text
from service.scheduler.call import Call
from service.scheduler.scheduler import Scheduler


@dataclass(slots=True)
class PreparedTexts:
    """Tokenised texts of a request, with their scheduler and caller."""

    texts: list[Text]
    caller: Call
    scheduler: Scheduler
    timings: Timings
    inputs: Sequence[Input] = ()
    """Inputs that were tokenised."""
    require_use: Callable[[Use], None] = lambda _: None
    """Function that rejects a use; see `Inference.require_use`."""
    window_tokens: int = 0
    """Maximum number of tokens of a window of a long text; 0 if the texts are not windowed."""

    @property
    def characters(self) -> int:
        """Number of characters of the inputs."""
        return characters(self.inputs)

    @property
    def windowed(self) -> bool:
        """Whether a text takes several windows."""
        return 0 < self.window_tokens < max([text.size for text in self.texts])

    def recount(self) -> None:
        """Count tokens and warnings again after texts were cut below the model's limit."""
        warnings = self.timings.warnings
        self.timings.tokens = sum(len(text.input_ids) for text in self.texts)
        self.timings.warnings = Warnings.of(self.texts, warnings.prompt_missing)

    def mark_truncated(self, cut: Sequence[bool]) -> None:
        """Mark texts as truncated that were cut before tokenisation.

        Args:
            cut: whether each text was cut.

        """
        for text, before in zip(self.texts, cut, strict=True):
            text.truncated = text.truncated or before
        self.recount()

    @property
    def engine(self) -> str:
        """Name of the engine that computes the texts."""
        return self.scheduler.engine.name


@dataclass(frozen=True)
class EncodeOptions:
    """Options of the arrays of each text."""

    layer: int
    """Hidden state, 0 … L; ignored if `layers` is not empty."""
    tokens: bool
    """Whether to return token vectors."""
    pooled: bool
    """Whether to return the pooled vector."""
    pooling: PoolingName | None = None
    """Pooling; None is the checkpoint's own."""
    dimensions: int | None = None
    """Number of leading features of the pooled vector to keep; None is the checkpoint's own."""
    normalize: bool | None = None
    """Whether to normalise the kept features; None is the checkpoint's own choice, which normalises
    before its own cut."""
    layers: tuple[int, ...] = ()
    """Hidden states to return, in the order of the reply."""
    ablated: Ablated = ()
    """Heads whose output is set to zero, as (layer, head)."""
    spans: Sequence[TextSpans] = ()
    """Spans of each text, of which a vector each is returned; empty without spans."""
    quantization: Quantization = FLOAT32
    """Conversion of pooled vectors to the requested type."""
    head: HeadVectors | None = None
    """Requested vectors of the task head; None without."""

    @property
    def states(self) -> tuple[int, ...]:
        """Indices of all requested hidden states."""
        return self.layers or (self.layer,)

    def own_vectors(self, pooling: PoolingModes, last_layer: int) -> bool:
        """Return whether pooled vectors are the checkpoint's: its pooling of the last state."""
        return (self.pooling or pooling) == pooling and set(self.states) == {last_layer}

    def uses(self, manifest: Manifest) -> Iterator[Use]:
        """Yield the uses of an artifact that the arrays need.

        Verification of vectors covers the last hidden state with the checkpoint's own pooling;
        other arrays belong to the use of heads.
        """
        own = self.own_vectors(manifest.sentence.pooling, manifest.config.num_hidden_layers)
        if self.head or ((self.pooled or self.spans) and own):
            yield "vectors"
        if self.tokens or self.ablated or not own:
            yield "heads"


@dataclass(slots=True)
class TextEncoding:
    """Arrays of a text; None for arrays that are not requested."""

    tokens: Floats | None
    """Token vectors `[S, H]`, or `[layers, S, H]` with `layers`."""
    pooled: Floats | None
    """Pooled vector `[D]` of the kept features, or `[layers, D]` with `layers`."""
    spans: Floats | None = None
    """Vector of each span `[n, D]`, or `[layers, n, D]` with `layers`."""
    places: Places | None = None
    """Start and end of each span in code points, `[n, 2]`."""
    windows: int = 0
    """Number of windows in which the text was encoded; 0 without windows."""
    sparse: SparseVector | None = None
    """Sparse vector of the task head."""
    multivector: Floats | None = None
    """Token vectors of the task head, `[n, D]`."""
    converted: dict[str, NDArray[np.generic]] = field(default_factory=dict)
    """Pooled vectors in the requested type, by their names in replies; empty for float32."""

    @property
    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Arrays that were requested, by their names in replies."""
        arrays: dict[str, NDArray[np.generic]] = {}
        if self.tokens is not None:
            arrays["embeddings"] = self.tokens
        if self.pooled is not None:
            arrays["pooled"] = self.pooled
        if self.spans is not None:
            arrays["span_vectors"] = self.spans
        if self.multivector is not None:
            arrays["multivector"] = self.multivector
        return arrays | self.converted if self.converted else arrays
