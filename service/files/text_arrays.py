"""What each kind of output asks of an engine, and makes of its answers.

Notation: S tokens of one text, H hidden size, L layers, N heads, V words of the vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from model.artifact.manifest import Manifest
from model.artifact.vectors import TextVectors
from service.engines.contract import Ablated, Floats, MapsTask, Pooling, TextTask
from service.errors import NoTaskHead
from service.files.encoder import Refused
from service.files.fields import TextArrays
from service.files.options import Encoding
from service.inference.attention.statistics import STATISTICS, shift, statistics
from service.inference.attention.stream import CHUNK_TOKENS, LAYER_BYTES
from service.inference.tokenization.tokenizer import TokenizedText

Run = Callable[[Sequence[Any]], list[Any]]
"""A batch of tasks to their outputs, which are checked."""
_UNBOUNDED = 2**62


@dataclass(frozen=True)
class Plan(ABC):
    """One kind of output, of one model."""

    manifest: Manifest
    batch_tokens: int = _UNBOUNDED
    """Most of a batch."""

    @abstractmethod
    def compute(self, texts: Sequence[TokenizedText], run: Run) -> list[TextArrays]:
        """The arrays of each text of a batch, in the order of the kind's fields."""

    def refusal(self, text: TokenizedText) -> Refused | None:
        """Why a text cannot be computed; None where it can."""
        del text
        return None


@dataclass(frozen=True, kw_only=True)
class PooledPlan(Plan):
    """One vector a text."""

    vectors: TextVectors
    encoding: Encoding
    layer: int

    def compute(self, texts: Sequence[TokenizedText], run: Run) -> list[TextArrays]:
        """`[D]` of each."""
        return [(vector,) for vector in self.pooled(texts, run)]

    def pooled(
        self, texts: Sequence[TokenizedText], run: Run, ablated: Ablated = ()
    ) -> list[Floats]:
        """Return the vector of each text without the ablated heads."""
        wanted, sentence = self.encoding, self.manifest.sentence
        mode = wanted.pooling or sentence.pooling
        outputs = run(
            [
                TextTask(
                    text.input_ids,
                    text.segment_ids,
                    pooling=Pooling(self.layer, mode, text.first_pooled(sentence)),
                    ablated=ablated,
                )
                for text in texts
            ]
        )
        pooled = [output.pooled for output in outputs]
        return self.vectors.finish(pooled, wanted.pooling, wanted.dimensions, wanted.normalize)


@dataclass(frozen=True, kw_only=True)
class ImportancePlan(PooledPlan):
    """Change of a text's vector without each head."""

    def compute(self, texts: Sequence[TokenizedText], run: Run) -> list[TextArrays]:
        """`[L, N]` of each; one head is switched off at a time, in all texts of the batch."""
        config = self.manifest.config
        whole = self.pooled(texts, run)
        found = np.empty(
            (len(texts), config.num_hidden_layers, config.num_attention_heads), np.float32
        )
        for layer, head in np.ndindex(*found.shape[1:]):
            without = self.pooled(texts, run, ((layer, head),))
            found[:, layer, head] = [shift(*both) for both in zip(without, whole, strict=True)]
        return [(importance,) for importance in found]


@dataclass(frozen=True, kw_only=True)
class TokensPlan(Plan):
    """One vector a token."""

    layer: int

    def compute(self, texts: Sequence[TokenizedText], run: Run) -> list[TextArrays]:
        """`[S]` ids and `[S, H]` of each."""
        layers = (self.layer,)
        outputs = run([TextTask(text.input_ids, text.segment_ids, layers) for text in texts])
        return [
            (text.input_ids, output.hidden[0]) for text, output in zip(texts, outputs, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class SparsePlan(Plan):
    """The words of the vocabulary whose weight is not 0."""

    shape: tuple[int, ...]

    def compute(self, texts: Sequence[TokenizedText], run: Run) -> list[TextArrays]:
        """Token ids, ascending, and their weights."""
        outputs = run(
            [TextTask(text.input_ids, text.segment_ids, scores=self.shape) for text in texts]
        )
        weights = [output.scores for output in outputs]
        kept = [np.flatnonzero(one) for one in weights]
        return [(indices, one[indices]) for indices, one in zip(kept, weights, strict=True)]


@dataclass(frozen=True, kw_only=True)
class StatisticsPlan(Plan):
    """The statistics of every head."""

    separators: Collection[int]

    def compute(self, texts: Sequence[TokenizedText], run: Run) -> list[TextArrays]:
        """`[L, N]` of each of `STATISTICS`; the maps of one layer of one text at a time."""
        config = self.manifest.config
        layers, heads = config.num_hidden_layers, tuple(range(config.num_attention_heads))
        if self.manifest.foreign:
            return [self._of_graph(text, run) for text in texts]
        wanted = tuple(range(layers))
        states = run([TextTask(text.input_ids, text.segment_ids, wanted) for text in texts])
        found = []
        for text, output in zip(texts, states, strict=True):
            ends = self._ends(text)
            of_layers = [
                statistics(run([MapsTask(hidden, hidden, layer, heads)])[0].maps, ends)
                for layer, hidden in enumerate(output.hidden)
            ]
            found.append(tuple(np.stack([one[name] for one in of_layers]) for name in STATISTICS))
        return found

    def refusal(self, text: TokenizedText) -> Refused | None:
        """Too many tokens, for the maps of a layer, or of all layers of a foreign graph."""
        config, tokens = self.manifest.config, len(text.input_ids)
        layers = config.num_hidden_layers if self.manifest.foreign else 1
        size = 4 * layers * config.num_attention_heads * tokens**2
        if size <= LAYER_BYTES:
            return None
        return Refused(
            f"the text has {tokens} tokens: maps that are computed together take {size} bytes, "
            f"the limit is {LAYER_BYTES}"
        )

    def _of_graph(self, text: TokenizedText, run: Run) -> TextArrays:
        config, tokens = self.manifest.config, len(text.input_ids)
        shape = (config.num_hidden_layers, config.num_attention_heads, tokens, tokens)
        (output,) = run([TextTask(text.input_ids, text.segment_ids, scores=shape)])
        found = statistics(output.scores, self._ends(text))
        return tuple(found[name] for name in STATISTICS)

    def _ends(self, text: TokenizedText) -> list[int]:
        places: list[int] = np.isin(text.input_ids, [*self.separators]).nonzero()[0].tolist()
        return places


def plan_of(
    manifest: Manifest, vectors: TextVectors, encoding: Encoding, separators: Collection[int]
) -> Plan:
    """The plan of what is wanted.

    Args:
        manifest: of the model.
        vectors: of the model.
        encoding: what is wanted; its layer is in range.
        separators: token ids that end a text.

    Raises:
        NoTaskHead: sparse vectors are wanted, and the model has none.

    """
    layer = encoding.layer % (manifest.config.num_hidden_layers + 1)
    match encoding.kind:
        case "pooled":
            return PooledPlan(manifest, vectors=vectors, encoding=encoding, layer=layer)
        case "importance":
            return ImportancePlan(manifest, vectors=vectors, encoding=encoding, layer=layer)
        case "tokens":
            return TokensPlan(manifest, layer=layer)
        case "sparse":
            if manifest.task is None or manifest.task.kind != "sparse":
                raise NoTaskHead(
                    f"{manifest.model} gives no sparse vectors: take a sparse encoder (SPLADE)"
                )
            return SparsePlan(manifest, shape=manifest.task.shape(0))
        case "stats":
            return StatisticsPlan(manifest, CHUNK_TOKENS, separators=separators)
