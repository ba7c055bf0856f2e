"""Pooled vectors to the vectors of texts: the checkpoint's own modules after pooling. numpy only.

Notation: S tokens of one text, H hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from safetensors.numpy import load_file

from model.artifact.access import reading
from model.artifact.manifest import VECTOR_MODULES, Artifact
from model.artifact.pooling import PoolingModes, l2_normalize, modes_of, pool
from model.artifact.sentence import SentenceConfig
from model.artifact.vector_modules import Floats, VectorModule, tensor_name


class TextVectors:
    """What an artifact makes of pooled vectors."""

    def __init__(
        self, sentence: SentenceConfig, hidden_size: int, tensors: Mapping[str, Floats]
    ) -> None:
        """Take the tensors of the modules.

        Args:
            sentence: the modules, and what is kept of their vectors.
            hidden_size: H.
            tensors: by `tensor_name`, in float32.

        """
        self._sentence = sentence
        self._hidden_size = hidden_size
        self._steps: list[tuple[VectorModule, dict[str, Floats]]] = [
            (module, {name: tensors[tensor_name(place, name)] for name in module.shapes()})
            for place, module in enumerate(sentence.modules)
        ]

    @classmethod
    def of(cls, artifact: Artifact) -> TextVectors:
        """Those of an artifact.

        Raises:
            ArtifactError: the file of the tensors cannot be read.

        """
        with reading(path := artifact.path(VECTOR_MODULES)):
            manifest = artifact.manifest
            return cls(manifest.sentence, manifest.config.hidden_size, load_file(path))

    @property
    def pooling(self) -> PoolingModes:
        """The checkpoint's own."""
        return self._sentence.pooling

    def size(self, pooling: PoolingModes | None = None) -> int:
        """Features of a vector before it is cut.

        Args:
            pooling: a caller's; the checkpoint's own when None. Modules that do not fit its size
                are left out.

        """
        fitting = self._sentence.vector_size(self._hidden_size, pooling)
        if fitting is not None:
            return fitting
        return self._hidden_size * len(modes_of(pooling or self._sentence.pooling))

    def kept(self, pooling: PoolingModes | None = None, dimensions: int | None = None) -> int:
        """Features of a vector that is cut to so many, or as the checkpoint says when None."""
        size = self.size(pooling)
        return min(size, dimensions or self._sentence.truncate_dim or size)

    def finish(
        self,
        pooled: Sequence[Floats],
        pooling: PoolingModes | None = None,
        dimensions: int | None = None,
        normalize: bool | None = None,
    ) -> list[Floats]:
        """The vectors of texts.

        What a caller cuts is normalised afterwards. What the checkpoint's own `truncate_dim` cuts
        is not, unless a caller asks for it: sentence-transformers cuts after its last module.

        Args:
            pooled: not normalised.
            pooling: as for `size`.
            dimensions: as for `kept`.
            normalize: whether they become unit vectors; the checkpoint's own choice when None.

        """
        vectors = self.project(pooled, pooling)
        unit = self._sentence.normalize if normalize is None else normalize
        if dimensions is None and normalize is None and unit and self._sentence.truncate_dim:
            vectors, unit = [l2_normalize(vector) for vector in vectors], False
        n = self.kept(pooling, dimensions)
        kept = [vector[:n] for vector in vectors]
        return [l2_normalize(vector) for vector in kept] if unit else kept

    def additive(self, pooling: PoolingModes | None = None) -> bool:
        """Whether what is added up in a pooled vector adds up in the vector of its text."""
        return all(module.additive for module, _ in self._fitting(pooling))

    def shares(self, shares: Floats, pooling: PoolingModes | None = None) -> Floats:
        """Shares of a pooled vector → shares of its text's vector, which is yet to be normalised.

        Args:
            shares: `[n, H]`, which sum to the pooled vector.
            pooling: as for `size`; `additive` of it.

        Returns:
            `[n, D]`, which sum to the vector, with as much of a bias in each.

        """
        for module, tensors in self._fitting(pooling):
            shares = module.shares(shares, tensors)
        return shares[:, : self.kept(pooling)]

    def unit(self, hidden: Floats) -> Floats:
        """The unit vector of one text, of a hidden state `[S, H]` and the checkpoint's pooling."""
        return self.units([pool(hidden, self.pooling)])[0]

    def units(self, pooled: Sequence[Floats]) -> list[Floats]:
        """The unit vectors of texts, of the checkpoint's pooling; none is cut."""
        return [l2_normalize(vector) for vector in self.project(pooled)]

    def project(
        self, pooled: Sequence[Floats], pooling: PoolingModes | None = None
    ) -> list[Floats]:
        """What the modules make of pooled vectors, as for `size`."""
        steps = self._fitting(pooling)
        if not (steps and pooled):
            return list(pooled)
        found = np.stack(pooled)
        for module, tensors in steps:
            found = module(found, tensors)
        return list(found)

    def _fitting(
        self, pooling: PoolingModes | None
    ) -> Sequence[tuple[VectorModule, Mapping[str, Floats]]]:
        """The modules with their tensors; none where a pooling's size does not fit them."""
        fit = self._sentence.vector_size(self._hidden_size, pooling) is not None
        return self._steps if fit else ()
