"""`sparse` and `multivector`: outputs of a model's task head.

Notation: S tokens of one text, V words of the vocabulary, W words with a weight, n tokens with a
vector, D features of a token's vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from model.artifact.manifest import Manifest
from model.artifact.vectors import TextVectors
from model.numerics.late_interaction import LateInteraction, Role
from model.numerics.task_head import TaskConfig
from service.engines.contract import Floats, Ids, TextTask
from service.engines.contract import Output as Computed
from service.errors import Unprocessable
from service.inference.encoding import EncodeOptions
from service.inference.outputs.field import Field, TextArrays
from service.inference.outputs.output import Output
from service.inference.tokenization.text import Text
from service.scheduler.outputs import requested

WORD_BYTES = 24
"""Predicted bytes of a word's index and weight in a reply."""
WEIGHT_BYTES = 4
"""Bytes of the weight of a word of the vocabulary, before zero weights are dropped."""
PREDICTED_SHARE = 8
"""Words of the vocabulary for each word that a sparse encoder's vector is predicted to have."""


class TaskHeadOutput(Output):
    """Base of the outputs whose name is one of `TaskConfig.vectors`."""

    use = "vectors"
    windowed = False
    by_text = True

    def __init__(self, options: EncodeOptions, manifest: Manifest, vectors: TextVectors) -> None:
        """Check that the last hidden state is requested."""
        super().__init__(options, manifest, vectors)
        if not options.layers and self.states != (manifest.config.num_hidden_layers,):
            raise Unprocessable(
                f"outputs: {self.name} is computed from the last hidden state: leave out `layer`"
            )
        self.task: TaskConfig = requested(manifest.task)
        if late := self.task.late:
            self.max_tokens = late.query_tokens if self.is_query else late.document_tokens

    @classmethod
    def offered(cls, manifest: Manifest) -> bool:
        """Return whether the model's task head computes the output."""
        return manifest.task is not None and cls.name in manifest.task.vectors

    @property
    def is_query(self) -> bool:
        """Whether the texts are encoded as queries of late interaction."""
        return self.task.kind == "late_interaction" and self.options.role == "query"

    def extend(self, task: TextTask, text: Text) -> None:
        """Request the scores of the task head."""
        task.scores = self.task.shape(text.size)
        if self.task.late and self.is_query:
            add_expansion(task, self.task.late, self.task.outputs)


def add_expansion(task: TextTask, late: LateInteraction, outputs: int) -> None:
    """Add the expansion tokens of a query and the scores of all its tokens to its forward pass."""
    own = len(task.input_ids)
    task.input_ids = late.filled_up(task.input_ids)
    task.segment_ids = np.pad(task.segment_ids, (0, len(task.input_ids) - own))
    task.scores = len(task.input_ids), outputs
    task.unseen = (*task.unseen, *late.unseen_of(own))


class SparseOutput(TaskHeadOutput):
    """Token ids, ascending, and their non-zero weights."""

    name = "sparse"
    remedy = "sparse vectors: take a sparse encoder (SPLADE)"
    fields = (
        Field(
            "sparse.indices",
            "int32",
            ("W",),
            "Token ids, ascending.",
            ragged=True,
            column="indices",
        ),
        Field("sparse.values", "float32", ("W",), "Weights.", ragged=True, column="values"),
        Field("sparse_cu_seqlens", "int32", bounds_of="sparse.indices"),
    )

    def reduce(self, text: Text, computed: Computed) -> TextArrays:
        """Return the vector of a text."""
        indices, values = sparse_vector(self.task, requested(computed.scores), text.input_ids)
        return {"sparse.indices": indices, "sparse.values": values}

    def entries(self, texts: Sequence[Text]) -> int:
        """Return the predicted number of words, which a sparse encoder decides."""
        if self.task.kind == "sparse":
            return len(texts) * self.task.outputs // PREDICTED_SHARE
        return super().entries(texts)

    def nbytes(self, texts: Sequence[Text], number: float) -> float:
        """Return the predicted bytes; of a sparse encoder while it has its whole vocabulary."""
        del number
        if self.task.kind == "sparse":
            return WEIGHT_BYTES * self.task.outputs * len(texts)
        return WORD_BYTES * super().entries(texts)


class SparseVector(NamedTuple):
    """Sparse vector of the vocabulary words with non-zero weights."""

    indices: Ids
    """Token ids, ascending."""
    values: Floats


def sparse_vector(task: TaskConfig, scores: Floats, input_ids: Ids) -> SparseVector:
    """Return the sparse vector of a text of `input_ids` `[S]`.

    Scores are weights `[V]`. Those of a `hybrid` head are `[S, D + 1]`, whose last column has a
    weight for each token, of which each word gets the largest (bge-m3: Chen et al. 2024, section
    3.1, https://arxiv.org/abs/2402.03216).
    """
    if task.kind == "sparse":
        indices = np.flatnonzero(scores)
        return SparseVector(indices, scores[indices])
    weights = scores[:, -1]
    kept = (weights > 0) & ~np.isin(input_ids, task.unused_ids)
    indices, words = np.unique(input_ids[kept], return_inverse=True)
    values = np.zeros(len(indices), np.float32)
    np.maximum.at(values, words, weights[kept])
    return SparseVector(indices, values)


def sparse_product(first: SparseVector, second: SparseVector) -> float:
    """Return the inner product of two sparse vectors."""
    _, own, other = np.intersect1d(
        first.indices, second.indices, assume_unique=True, return_indices=True
    )
    return float(np.dot(first.values[own], second.values[other]))


class MultivectorOutput(TaskHeadOutput):
    """Vectors `[n, D]` of the tokens that have one, among them a query's expansion tokens."""

    name = "multivector"
    remedy = "token vectors for MaxSim: take a late-interaction model"
    fields = (
        Field(
            "multivector",
            "float32",
            ("n", "D"),
            "`[n][D]`, vectors of late interaction.",
            ragged=True,
        ),
        Field("multivector_cu_seqlens", "int32", bounds_of="multivector"),
    )

    def __init__(self, options: EncodeOptions, manifest: Manifest, vectors: TextVectors) -> None:
        """Check the role of the texts."""
        super().__init__(options, manifest, vectors)
        if self.task.kind == "late_interaction" and options.role is None:
            raise Unprocessable(
                "outputs: multivector: the model encodes queries and documents differently: set "
                "`prompt_name` to query or document"
            )
        self._late: LateInteraction = requested(self.task.late)
        self._role: Role = "query" if self.is_query else "document"
        self.sizes = {"D": token_features(self.task)}
        if self.is_query and self._late.expansion and {"tokens", "pooled"} & {*options.outputs}:
            raise Unprocessable(
                "outputs: multivector of a query has expansion tokens, which tokens and pooled "
                "lack: ask for it alone"
            )

    def _read(self, text: Text) -> Ids:
        """Return the token ids that the encoder reads."""
        return self._late.filled_up(text.input_ids) if self.is_query else text.input_ids

    def reduce(self, text: Text, computed: Computed) -> TextArrays:
        """Return the vectors."""
        scores = requested(computed.scores)
        return {"multivector": token_vectors(self.task, scores, self._read(text), self._role)}

    def entries(self, texts: Sequence[Text]) -> int:
        """Return the number of tokens, with expansion tokens."""
        return sum(len(self._read(text)) for text in texts)


def token_vectors(task: TaskConfig, scores: Floats, input_ids: Ids, role: Role) -> Floats:
    """Return the vectors `[n, D]` of the tokens of a text that have one.

    Scores are `[S, D]`, or of a `hybrid` head `[S, D + 1]`; `input_ids` `[S]` include expansion
    tokens.
    """
    if task.late is None:
        raise ValueError(f"a task head of {task.kind} computes no token vectors")
    return task.late.kept(scores[:, : token_features(task)], input_ids, role)


def token_features(task: TaskConfig) -> int:
    """Return the number of features of a token's vector, D."""
    return task.outputs - (task.kind == "hybrid")
