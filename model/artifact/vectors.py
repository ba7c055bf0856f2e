"""Vectors of texts from pooled vectors: the checkpoint's modules after pooling. numpy only.

Notation: S tokens of one text, H hidden size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from safetensors.numpy import load_file

from model.artifact.integrity import reading
from model.artifact.manifest import VECTOR_MODULES, Artifact
from model.artifact.sentence import SentenceConfig
from model.config.encoder import EncoderConfig
from model.numerics.attention_pooling import AttentionPooling
from model.numerics.pooling import PoolingModes, l2_normalize, modes_of, pool, pooled_parts
from model.numerics.quantization import ranges_of
from model.numerics.vector_modules import Floats, VectorModule, tensor_name

CALIBRATION = "calibration"
"""Name of the tensor of the calibration texts' pooled vectors, `[n, H]` for one pooling mode."""
MAX_RANGES = 32
"""Maximum number of `dimensions` whose ranges are kept."""


class TextVectors:
    """Vector pipeline of an artifact: modules after pooling, truncation, normalisation."""

    def __init__(
        self,
        sentence: SentenceConfig,
        hidden_size: int,
        tensors: Mapping[str, Floats],
        attention: AttentionPooling | None = None,
    ) -> None:
        """Keep the tensors of the modules.

        `tensors` are float32, by `tensor_name`, and optionally `CALIBRATION`. `attention` is the
        pooling of the mode "attention".
        """
        self._attention = attention
        self._sentence = sentence
        self.hidden_size = hidden_size
        self._steps: list[tuple[VectorModule, dict[str, Floats]]] = [
            (module, {name: tensors[tensor_name(place, name)] for name in module.shapes()})
            for place, module in enumerate(sentence.modules)
        ]
        self._calibration = tensors.get(CALIBRATION, np.empty((0, hidden_size), np.float32))
        self._measured = functools.lru_cache(maxsize=MAX_RANGES)(self._measure)

    @classmethod
    def of(cls, artifact: Artifact) -> TextVectors:
        """Load the vector pipeline of an artifact."""
        with reading(path := artifact.path(VECTOR_MODULES)):
            tensors = load_file(path)
        manifest = artifact.manifest
        return cls.with_tensors(manifest.sentence, manifest.config, tensors)

    @classmethod
    def with_tensors(
        cls, sentence: SentenceConfig, config: EncoderConfig, tensors: Mapping[str, Floats]
    ) -> TextVectors:
        """Return the vector pipeline of an encoder, with these tensors of an artifact."""
        learned = sentence.pooling == "attention"
        attention = AttentionPooling(config, tensors) if learned else None
        return cls(sentence, config.hidden_size, tensors, attention)

    @property
    def pooling(self) -> PoolingModes:
        """Pooling of the checkpoint."""
        return self._sentence.pooling

    def size(self, pooling: PoolingModes | None = None) -> int:
        """Return the size of a vector before truncation.

        Modules that do not fit the size of a caller's pooling are skipped.
        """
        fitting = self._sentence.vector_size(self.hidden_size, pooling)
        if fitting is not None:
            return fitting
        return self.hidden_size * len(modes_of(pooling or self._sentence.pooling))

    def kept(self, pooling: PoolingModes | None = None, dimensions: int | None = None) -> int:
        """Return the size of a vector truncated to `dimensions`, or to the checkpoint's default."""
        size = self.size(pooling)
        return min(size, dimensions or self._sentence.truncate_dim or size)

    def finish(
        self,
        pooled: Sequence[Floats],
        pooling: PoolingModes | None = None,
        dimensions: int | None = None,
        normalize: bool | None = None,
    ) -> list[Floats]:
        """Return the vectors of texts, projected, truncated and normalised."""
        finish = self.finisher(pooling, dimensions, normalize)
        return [finish(vector) for vector in self.project(pooled, pooling)]

    def finisher(
        self, pooling: PoolingModes | None, dimensions: int | None, normalize: bool | None
    ) -> Callable[[Floats], Floats]:
        """Return the function that truncates and normalises a projected vector.

        Vectors are normalised after truncation to a caller's `dimensions`, but before truncation to
        the checkpoint's `truncate_dim` unless a caller asks for normalisation:
        sentence-transformers truncates after its last module.
        """
        n = self.kept(pooling, dimensions)
        if not (self._sentence.normalize if normalize is None else normalize):
            return lambda vector: vector[:n]
        if dimensions is None and normalize is None:
            return lambda vector: l2_normalize(vector)[:n]
        return lambda vector: l2_normalize(vector[:n])

    @property
    def has_ranges(self) -> bool:
        """Whether the artifact has the vectors of calibration texts."""
        return bool(len(self._calibration))

    def ranges(self, dimensions: int | None = None, normalize: bool | None = None) -> Floats | None:
        """Return the lowest and highest value of each feature over the calibration texts.

        They are `[2, D]`, of vectors of the last hidden state by the checkpoint's pooling. None
        without calibration texts: the export of a static embedding encodes none.
        """
        return self._measured(dimensions, normalize) if self.has_ranges else None

    def _measure(self, dimensions: int | None, normalize: bool | None) -> Floats:
        pooled = [*self._calibration]
        return ranges_of(self.finish(pooled, dimensions=dimensions, normalize=normalize))

    def additive(self, pooling: PoolingModes | None = None) -> bool:
        """Return whether the modules map a sum of vectors to the sum of their images."""
        return all(module.additive for module, _ in self._fitting(pooling))

    def shares(self, shares: Floats, pooling: PoolingModes | None = None) -> Floats:
        """Return shares of a text's vector before normalisation, given shares of its pooled vector.

        The shares `[n, H]` sum to the pooled vector, the result `[n, D]` to the vector, with the
        biases divided equally. `additive` must be true of the pooling.
        """
        for module, tensors in self._fitting(pooling):
            shares = module.shares(shares, tensors)
        return shares[:, : self.kept(pooling)]

    def pool(
        self,
        hidden: Floats,
        pooling: PoolingModes,
        first_token: int = 0,
        left_out: Sequence[int] = (),
    ) -> Floats:
        """Return one vector of hidden states `[S, H]`, as `model.numerics.pooling.pool` does.

        Pooling by attention gives tokens that are left out no weight.
        """
        if pooling != "attention" or self._attention is None:
            return pool(hidden, pooling, first_token, left_out)
        return self._attention(np.delete(hidden, [*range(first_token), *left_out], axis=0))

    def pooled_parts(self, parts: Floats, pooling: PoolingModes, first_token: int = 0) -> Floats:
        """Return the shares of input tokens in a pooled vector, `[S, P, H]` → `[P, H]`.

        As `model.numerics.pooling.pooled_parts`, and also for pooling by attention.
        """
        if pooling != "attention" or self._attention is None:
            return pooled_parts(parts, pooling, first_token)
        return self._attention.parts(parts[first_token:])

    def unit(self, hidden: Floats) -> Floats:
        """Return the unit vector of a text's hidden state `[S, H]`, by the checkpoint's pooling."""
        return self.units([self.pool(hidden, self.pooling)])[0]

    def units(self, pooled: Sequence[Floats]) -> list[Floats]:
        """Return unit vectors of pooled vectors of the checkpoint's pooling, without truncation."""
        return [l2_normalize(vector) for vector in self.project(pooled)]

    def project(
        self, pooled: Sequence[Floats], pooling: PoolingModes | None = None
    ) -> list[Floats]:
        """Apply the modules to pooled vectors; `pooling` as for `size`."""
        steps = self._fitting(pooling)
        if not (steps and pooled):
            return list(pooled)
        projected = np.stack(pooled)
        for module, tensors in steps:
            projected = module(projected, tensors)
        return list(projected)

    def _fitting(
        self, pooling: PoolingModes | None
    ) -> Sequence[tuple[VectorModule, Mapping[str, Floats]]]:
        """Return the modules with their tensors; none if they do not fit the pooling's size."""
        fit = self._sentence.vector_size(self.hidden_size, pooling) is not None
        return self._steps if fit else ()
