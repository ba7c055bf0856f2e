"""Vectors of a text that a task head computes: a sparse vector, and a vector a token.

Notation: S tokens of one text, V words of the vocabulary, D features of a token's vector.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from model.numerics.late_interaction import ROLES, LateInteraction, Role
from model.numerics.task_head import TaskConfig, VectorsName
from service.engines.contract import Floats, Ids, TextTask
from service.errors import Unprocessable
from service.inference.tokenization.text import Text


class SparseVector(NamedTuple):
    """Sparse vector of the vocabulary words with non-zero weights."""

    indices: Ids
    """Token ids, ascending."""
    values: Floats


@dataclass(frozen=True)
class HeadVectors:
    """Requested vectors of a task head for each text."""

    task: TaskConfig
    names: tuple[VectorsName, ...]
    """At least one of `TaskConfig.vectors`."""
    role: Role = "document"
    """Role of the texts in late interaction."""

    @property
    def expands(self) -> bool:
        """Whether expansion tokens are added to the texts, which are queries."""
        late = self.task.late
        return self.role == "query" and late is not None and late.expansion is not None

    @property
    def max_tokens(self) -> int | None:
        """Maximum tokens of a text in its role; the limit of all texts when None."""
        if (late := self.task.late) is None:
            return None
        return late.query_tokens if self.role == "query" else late.document_tokens

    def in_role(self, prompt_name: str | None) -> HeadVectors:
        """Return the vectors with the role that a prompt names, in late interaction.

        Raises:
            Unprocessable: a late-interaction model encodes each role differently, and the prompt
                names none.

        """
        if self.task.kind != "late_interaction":
            return self
        if prompt_name not in ROLES:
            raise Unprocessable(
                "outputs: multivector: the model encodes queries and documents differently: set "
                "`prompt_name` to query or document"
            )
        return replace(self, role=prompt_name)

    def input_ids(self, text: Text) -> Ids:
        """Return the token ids `[S]` that the encoder reads, including expansion tokens."""
        if self.task.late is None or not self.expands:
            return text.input_ids
        return self.task.late.filled_up(text.input_ids)

    def encoded(self, text: Text) -> TextTask:
        """Return the forward pass of a text with the task head's scores."""
        if self.task.late is None or self.role == "document":
            shape = self.task.shape(len(text.input_ids))
            return TextTask(text.input_ids, text.segment_ids, scores=shape)
        return query_task(self.task.late, text, self.task.outputs)

    def sparse(self, scores: Floats, input_ids: Ids) -> SparseVector | None:
        """Return the sparse vector of a text; None if it is not requested."""
        return sparse_vector(self.task, scores, input_ids) if "sparse" in self.names else None

    def multivector(self, scores: Floats, input_ids: Ids) -> Floats | None:
        """Return the vectors `[n, D]` of a text's tokens; None if they are not requested."""
        if "multivector" not in self.names:
            return None
        return token_vectors(self.task, scores, input_ids, self.role)


def query_task(late: LateInteraction, text: Text, outputs: int) -> TextTask:
    """Return the forward pass of a query with its expansion tokens.

    Args:
        late: settings of late interaction.
        text: the query.
        outputs: number of outputs of the task head for each token.

    """
    ids = late.filled_up(text.input_ids)
    segments = np.pad(text.segment_ids, (0, len(ids) - len(text.input_ids)))
    unseen = tuple(late.unseen_of(len(text.input_ids)))
    return TextTask(ids, segments, scores=(len(ids), outputs), unseen=unseen)


def sparse_vector(task: TaskConfig, scores: Floats, input_ids: Ids) -> SparseVector:
    """Return the sparse vector of a text.

    Args:
        task: task head, which computes sparse vectors.
        scores: weights `[V]`; or of a `hybrid` head `[S, D + 1]`, whose last column has a weight
            for each token, of which each word gets the largest (bge-m3: Chen et al. 2024, section
            3.1, https://arxiv.org/abs/2402.03216).
        input_ids: `[S]`.

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


def token_vectors(task: TaskConfig, scores: Floats, input_ids: Ids, role: Role) -> Floats:
    """Return the vectors `[n, D]` of the tokens of a text that have one.

    Args:
        task: task head, which computes token vectors.
        scores: outputs `[S, D]`, or of a `hybrid` head `[S, D + 1]`.
        input_ids: `[S]`, including expansion tokens.
        role: role of the text.

    Raises:
        ValueError: the task head computes no token vectors.

    """
    if task.late is None:
        raise ValueError(f"a task head of {task.kind} computes no token vectors")
    return task.late.kept(scores[:, : token_features(task)], input_ids, role)


def token_features(task: TaskConfig) -> int:
    """Return the number of features of a token's vector, D."""
    return task.outputs - (task.kind == "hybrid")


def sparse_product(first: SparseVector, second: SparseVector) -> float:
    """Return the inner product of two sparse vectors."""
    _, own, other = np.intersect1d(
        first.indices, second.indices, assume_unique=True, return_indices=True
    )
    return float(np.dot(first.values[own], second.values[other]))


def names_of(task: TaskConfig | None) -> tuple[str, ...]:
    """Return the names of the outputs of /encode that a model has, by its task head."""
    return ("tokens", "pooled", *(task.vectors if task else ()))
