"""A request's tokenised texts, the arrays wanted of them, and those that are given.

Notation: S tokens of one text, H hidden size, L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from model.artifact.layer_parts import PartName
from model.artifact.manifest import Manifest
from model.artifact.pooling import PoolingName
from model.artifact.verification import Use
from service.engines.contract import Ablated, Floats
from service.inference.notices import Notices
from service.inference.timings import Timings
from service.inference.tokenization.tokenizer import TokenizedText
from service.scheduler.scheduler import Scheduler
from service.scheduler.submission import Caller


@dataclass(frozen=True)
class PreparedTexts:
    """The tokenised texts of a request, and who will compute them."""

    texts: list[TokenizedText]
    caller: Caller
    scheduler: Scheduler
    timings: Timings
    targets: Sequence[TokenizedText] = ()
    """What a decoder is to have written of each text; none without targets."""
    characters: int = 0
    """Of the inputs."""
    require_use: Callable[[Use], None] = lambda _: None
    """Check of a use, see `Inference.require_use`."""

    def recount(self) -> None:
        """Count tokens and notices anew once texts were cut further than to what fits."""
        notices = self.timings.notices
        self.timings.tokens = sum(len(text.input_ids) for text in self.texts)
        self.timings.notices = Notices.of(self.texts, notices.prompt_missing)

    def mark_truncated(self, cut: Sequence[bool]) -> None:
        """Count as truncated the texts that were cut before they were tokenised, too."""
        pairs = zip(self.texts, cut, strict=True)
        self.texts[:] = [
            replace(text, truncated=text.truncated or before) for text, before in pairs
        ]
        self.recount()

    @property
    def engine(self) -> str:
        """Name of the engine that computes them."""
        return self.scheduler.engine.name


@dataclass(frozen=True, slots=True)
class HeadPatch:
    """A head of one text whose output is replaced by the output it has in another text."""

    layer: int
    head: int
    source: int
    """Number of the text that the output comes from."""
    text: int
    """Number of the text that gets it, which has as many tokens."""


@dataclass(frozen=True)
class EncodeOptions:
    """The arrays that a caller wants of each text."""

    layer: int
    """Hidden state, 0 … L; ignored where there are `layers`."""
    tokens: bool
    """Whether token vectors are wanted."""
    pooled: bool
    """Whether the pooled vector is wanted."""
    pooling: PoolingName | None = None
    """The checkpoint's own when None."""
    dimensions: int | None = None
    """Leading features of the pooled vector that are kept; as many as the checkpoint's own
    configuration keeps when None."""
    normalize: bool | None = None
    """Whether what is kept becomes a unit vector; the checkpoint's own choice when None, which is
    made before its own cut."""
    layers: tuple[int, ...] = ()
    """Hidden states that are all wanted, in the order of the reply."""
    ablated: Ablated = ()
    """(layer, head) of each head whose output is multiplied by zero."""

    patches: tuple[HeadPatch, ...] = ()
    parts: tuple[PartName, ...] = ()
    """Parts of the layer before each state that are wanted."""

    @property
    def recomputes(self) -> bool:
        """Whether layers are computed again, beside the forward pass."""
        return bool(self.patches or self.parts)

    @property
    def states(self) -> tuple[int, ...]:
        """Numbers of all hidden states that are wanted."""
        return self.layers or (self.layer,)

    def uses(self, manifest: Manifest) -> Iterator[Use]:
        """Yield the uses of an artifact that the arrays need.

        Verification of vectors covers the last state's, in the checkpoint's own pooling; anything
        else is a hidden state.
        """
        pooling, last = manifest.sentence.pooling, manifest.config.num_hidden_layers
        own = (self.pooling or pooling) == pooling and set(self.states) == {last}
        if self.pooled and own:
            yield "vectors"
        if self.tokens or self.ablated or self.recomputes or not own:
            yield "heads"


@dataclass(frozen=True, slots=True)
class TextEncoding:
    """The arrays of one text; None where not wanted."""

    tokens: Floats | None
    """`[S, H]`, or `[layers, S, H]` with `layers`."""
    pooled: Floats | None
    """Features that are kept, `[D]`, or `[layers, D]` with `layers`."""
    parts: Mapping[PartName, Floats] = field(default_factory=dict)
    """Parts that are wanted, each like `tokens`."""
