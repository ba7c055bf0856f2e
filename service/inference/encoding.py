"""Tokenised texts of a request, and options of the requested outputs.

Notation: L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from model.artifact.manifest import Manifest
from model.config.precision import Use
from model.numerics.late_interaction import Role
from model.numerics.pooling import PoolingModes, PoolingName
from model.numerics.quantization import VectorType
from service.engines.contract import Ablated, Task
from service.inference.timings import Timings, Warnings
from service.inference.tokenization.inputs import Input, characters
from service.inference.tokenization.text import Text
from service.scheduler.call import Call
from service.scheduler.lanes import LaneName
from service.scheduler.queue import Reduce, Value
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
    whole: Sequence[Text] = ()
    """Whole texts, whose spans are the chunks that `texts` are; empty unless these are alone."""
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

    def mark_truncated(self, cut: Sequence[bool]) -> None:
        """Mark the texts as truncated that were cut before tokenisation."""
        for text, before in zip(self.texts, cut, strict=True):
            text.truncated = text.truncated or before
        missing = self.timings.warnings.prompt_missing
        self.timings.warnings = Warnings.of(self.texts, missing)

    @property
    def engine(self) -> str:
        """Name of the engine that computes the texts."""
        return self.scheduler.engine.name

    async def submit(
        self,
        lane: LaneName,
        tasks: Sequence[Task],
        reduce: Sequence[Reduce[Value]] = (),
        *,
        resumed: bool = False,
    ) -> list[Value]:
        """Compute tasks of the request as `Scheduler.submit` does, and add to its timings."""
        done = await self.scheduler.submit(lane, tasks, self.caller, reduce, resumed=resumed)
        self.timings.add(done)
        return [result.value for result in done]


@dataclass(frozen=True)
class EncodeOptions:
    """Requested outputs of each text, and their options."""

    outputs: tuple[str, ...]
    """Names of `outputs.declared.OUTPUTS`."""
    layer: int = -1
    """Hidden state, 0 … L, negative from the end; ignored if `layers` is not empty."""
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
    vector_type: VectorType = "float32"
    """Type of pooled vectors."""
    vector_ranges: Sequence[Sequence[float]] | None = None
    """Lowest values, then highest values, of each feature; None are the artifact's."""
    role: Role | None = None
    """Role of the texts in late interaction; None where the model has none."""

    def states(self, last_layer: int) -> tuple[int, ...]:
        """Return the indices of all requested hidden states, 0 … L, given L."""
        return self.layers or (self.layer % (last_layer + 1),)

    def own_vectors(self, pooling: PoolingModes, last_layer: int) -> bool:
        """Return whether pooled vectors are the checkpoint's: its pooling of the last state."""
        return (self.pooling or pooling) == pooling and {*self.states(last_layer)} == {last_layer}

    def vectors_use(self, manifest: Manifest) -> Use:
        """Return the use of an artifact that pooled vectors need.

        Verification of vectors covers the last hidden state with the checkpoint's own pooling.
        """
        own = self.own_vectors(manifest.sentence.pooling, manifest.config.num_hidden_layers)
        return "vectors" if own else "heads"
