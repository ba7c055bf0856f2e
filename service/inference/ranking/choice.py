"""Choice of a request's scorer by the kind of model, and the tokenisation of its texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from model.artifact.sentence import SimilarityName
from model.numerics.late_interaction import ROLES
from model.numerics.task_head import TaskConfig, TaskKind
from model.runtimes.capabilities import lacking_weights
from service.errors import NoTaskHead, NotExported, Unprocessable
from service.inference.core import Inference
from service.inference.encoding import PreparedTexts
from service.inference.ranking.scorers import (
    CrossScorer,
    DenseScorer,
    HybridScorer,
    LateScorer,
    Method,
    Scorer,
    SparseScorer,
    sums_pairs,
)
from service.inference.tasks.task_heads import required_task
from service.inference.tokenization.tokenizer import Options
from service.scheduler.call import Call
from service.scheduler.lanes import LaneName

Prompts = tuple[str | None, str | None]
"""Names of the prompts of queries and of documents; see `Options`."""
EQUAL = {"dense": 1.0, "sparse": 1.0, "multivector": 1.0}
"""Equal weights of a hybrid model's texts."""
_KINDS: tuple[TaskKind, ...] = ("sequence_classification", "late_interaction", "hybrid")
_RANKER = "a cross-encoder (…ForSequenceClassification with one label) or a late-interaction model"


@dataclass(frozen=True)
class RankTexts:
    """Texts of a request, and the options of their tokenisation and texts."""

    queries: Sequence[str]
    """The query of all documents, or one query for each document."""
    documents: Sequence[str]
    options: Options
    prompts: Prompts = (None, None)
    names: tuple[str, str] = ("the query", "documents[{}]")
    """Names of a query and of a document in error messages."""
    explains: bool = False
    """Whether shares of tokens, or matches, are computed."""
    weights: Mapping[str, float] | None = None
    """Weights of a hybrid model's scores, by name; equal ones if None."""
    similarity: SimilarityName | None = None
    """Similarity of the texts' vectors, in place of the scores of the model's kind."""


def check_rankable(inference: Inference) -> None:
    """Raise `NoTaskHead` for a classifier of tokens, or of texts with several labels."""
    task = inference.manifest.task
    if task is not None and (
        task.kind == "token_classification"
        or (task.kind == "sequence_classification" and task.outputs != 1)
    ):
        raise NoTaskHead(
            f"{inference.manifest.model} is a classifier with {task.outputs} labels, and ranks no "
            "texts: serve an embedding model, a sparse encoder, a late-interaction model or a "
            "cross-encoder"
        )


def check_reranker(inference: Inference) -> TaskConfig:
    """Return the task head of a reranker: one label, or a vector for each token."""
    task = required_task(inference.manifest, _KINDS, _RANKER)
    if task.kind == "sequence_classification" and task.outputs != 1:
        raise NoTaskHead(
            f"{inference.manifest.model} has {task.outputs} labels and is not a reranker: "
            f"serve {_RANKER}, or ask /predict"
        )
    return task


def separate_prompts(inference: Inference) -> bool:
    """Return whether queries and documents have prompts of the checkpoint's, each its own."""
    task = inference.manifest.task
    return task is None or task.kind in ("sparse", "hybrid")


def used_prompts(inference: Inference, prompts: Prompts) -> Prompts:
    """Return the names of the prompts that queries and documents get; None without a prompt."""
    task, default = inference.manifest.task, inference.sentence.default_prompt_name
    query, document = ((default if name is None else name) or None for name in prompts)
    if separate_prompts(inference):
        return query, document
    return (query if task is not None and task.late is None else None), None


async def scorer_of(
    inference: Inference,
    texts: RankTexts,
    caller: Call,
    engine: str | None = None,
) -> Scorer[Any]:
    """Tokenise the texts, and return their scorer.

    Raises:
        NoTaskHead: the model cannot rank texts.
        NotExported: the shares of a serving-only sparse encoder.
        NotVerified: a use that failed the artifact's verification.
        Unprocessable: a prompt or weights that the model has no place for, too many texts, or one
            that does not fit the model.
        EngineUnavailable: the engine has failed, or cannot be started.
        Overloaded: the queue has no room, or the deadline cannot be met.

    """
    check_rankable(inference)
    inference.require_use("vectors")
    task = None if texts.similarity else inference.manifest.task
    if texts.weights is not None and (task is None or task.kind != "hybrid"):
        raise Unprocessable(
            f"weights: {inference.manifest.model} has no dense, sparse and multi-vector scores, as "
            "bge-m3 has: leave it out"
        )
    explains, additive = texts.explains, sums_pairs(inference)
    lane: LaneName = "attention" if explains and not inference.manifest.static else "encode"
    if task is not None and task.kind == "sequence_classification":
        _check_unnamed((None, texts.prompts[1]), "reads each document with the query")
        given = [*texts.queries] * (len(texts.documents) if len(texts.queries) == 1 else 1)
        pairs = [*zip(given, texts.documents, strict=True)]
        options = replace(texts.options, naming=texts.names[1], prompt_name=texts.prompts[0])
        prepared = await inference.prepare(pairs, options, caller, lane, engine)
        return CrossScorer(prepared, inference, "logit", "occlusion", explains)
    if explains and (additive if task is None else task.kind == "sparse"):
        inference.require_use("heads")
    lacking = lacking_weights(inference.manifest, "the explanation of a sparse match")
    if explains and task is not None and task.kind == "sparse" and lacking:
        raise NotExported(lacking)
    prompts, limits = texts.prompts, tuple[int | None, int | None]((None, None))
    late = task.late if task is not None and task.kind == "late_interaction" else None
    if late is not None:
        _check_unnamed(prompts, "marks queries and documents itself")
        prompts, limits = (ROLES[0], ROLES[1]), (late.query_tokens, late.document_tokens)
    sides: list[PreparedTexts] = []
    for side, naming, prompt, limit in zip(
        (texts.queries, texts.documents), texts.names, prompts, limits, strict=True
    ):
        most = min((n for n in (limit, texts.options.max_tokens) if n), default=None)
        options = replace(texts.options, naming=naming, prompt_name=prompt, max_tokens=most)
        beside = sides[0].characters if sides else 0
        sides.append(await inference.prepare(side, options, caller, lane, engine, beside))
    queries, documents = sides
    own = inference.sentence.similarity_fn_name
    if task is None:
        vectors: SimilarityName = "cosine" if own in ("maxsim", "meanmaxsim") else own
        method: Method = "pairs" if additive else "occlusion"
        name = texts.similarity or vectors
        return DenseScorer(documents, inference, name, method, explains, queries)
    if late is not None:
        name = "meanmaxsim" if own == "meanmaxsim" else "maxsim"
        return LateScorer(documents, inference, name, "matches", explains, queries)
    if task.kind == "sparse":
        return SparseScorer(documents, inference, "sparse", "weights", explains, queries)
    weights = texts.weights or EQUAL
    return HybridScorer(documents, inference, "hybrid", "occlusion", explains, queries, weights)


def _check_unnamed(prompts: Prompts, why: str) -> None:
    """Raise if a prompt is named that the model has no place for."""
    for name, side in zip(prompts, ROLES, strict=True):
        if name is not None:
            raise Unprocessable(f"{side}_prompt_name is not for this model, which {why}")
