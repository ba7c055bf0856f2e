"""Choice of a request's scorer by the kind of model, and the tokenisation of its texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from model.artifact.manifest import TASK_WEIGHTS, Artifact
from model.numerics.late_interaction import ROLES, LateInteraction
from model.numerics.task_head import TaskConfig
from model.runtimes.capabilities import lacking_weights
from service.errors import NoTaskHead, NotExported, Unprocessable
from service.inference.core import Inference
from service.inference.encoding import PreparedTexts
from service.inference.ranking.cross import CrossScorer
from service.inference.ranking.dense import DenseScorer, sums_pairs
from service.inference.ranking.hybrid import HybridScorer
from service.inference.ranking.late import LateScorer
from service.inference.ranking.scorer import Scorer
from service.inference.ranking.sparse import SparseScorer
from service.inference.tasks.hybrid import HybridWeights
from service.inference.tasks.late_interaction import PreparedRanking
from service.inference.tokenization.tokenizer import Options
from service.scheduler.lanes import LaneName
from service.scheduler.submission import Caller

QUERY, DOCUMENT = "the query", "documents[{}]"
"""Names of the texts in error messages."""


@dataclass(frozen=True)
class RankTexts:
    """Texts of a request, and the options of their tokenisation."""

    query: str
    documents: Sequence[str]
    options: Options
    named: tuple[str | None, str | None]
    """Names of the prompts of the query and of the documents, as the caller gives them."""
    prompts: tuple[str | None, str | None]
    """Names of the prompts to use: the checkpoint's own where the caller gives none."""


def check_rankable(inference: Inference) -> None:
    """Raise if the model cannot rank texts.

    Raises:
        NoTaskHead: a classifier of tokens, or of texts with several labels.

    """
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


def prompt_names(inference: Inference, texts: RankTexts) -> tuple[str | None, str | None]:
    """Return the names of the prompts of the query and of the documents; None without a prompt.

    A late-interaction model marks both sides itself, and a cross-encoder has at most a prompt of
    the query.
    """
    task, default = inference.manifest.task, inference.sentence.default_prompt_name
    prompts: tuple[str | None, ...] = texts.prompts
    if task is not None and task.kind not in ("sparse", "hybrid"):
        if task.late is not None:
            return None, None
        return (default if texts.named[0] is None else texts.named[0]) or None, None
    query, document = ((default if name is None else name) or None for name in prompts)
    return query, document


@dataclass(frozen=True)
class ScorerFactory:
    """Scorer of a request's documents, by the kind of the model's task head."""

    inference: Inference
    artifact: Artifact
    """Artifact of the model, for the weights of a sparse encoder's head."""
    caller: Caller
    """Client and deadline of the request."""
    engine: str | None
    """Name of the engine; the service's own if None."""
    explains: bool
    """Whether shares of tokens are requested."""
    weights: HybridWeights
    """Weights of a hybrid model's scores."""

    async def scorer(self, texts: RankTexts) -> Scorer:
        """Tokenise the texts, and return their scorer.

        Raises:
            NoTaskHead: the model cannot rank texts.
            NotExported: the shares of a serving-only sparse encoder.
            NotVerified: a use that failed the artifact's verification.
            Unprocessable: a prompt for a model without prompts, too many texts, or one that does
                not fit the model.
            EngineUnavailable: the engine has failed, or cannot be started.
            Overloaded: the queue has no room, or the deadline cannot be met.

        """
        check_rankable(self.inference)
        self.inference.require_use("vectors")
        task = self.inference.manifest.task
        if task is None:
            return await self._dense(texts)
        if task.kind == "sparse":
            return await self._sparse(texts, task)
        if task.kind == "hybrid":
            query, documents = await self._prepared(texts)
            return HybridScorer(documents, query, self.inference, task, self.weights)
        if task.late is not None:
            _check_unnamed(texts.named, "marks queries and documents itself")
            return await self._late(texts, task.late)
        _check_unnamed((None, texts.named[1]), "reads each document with the query")
        pairs = [(texts.query, document) for document in texts.documents]
        options = replace(texts.options, naming=DOCUMENT, prompt_name=texts.named[0])
        prepared = await self.inference.prepare(
            pairs, options, self.caller, self._lane, self.engine
        )
        return CrossScorer(prepared, task)

    async def _dense(self, texts: RankTexts) -> Scorer:
        if self.explains and sums_pairs(self.inference):
            self.inference.require_use("heads")
        query, documents = await self._prepared(texts)
        return DenseScorer(documents, query, self.inference)

    async def _sparse(self, texts: RankTexts, task: TaskConfig) -> Scorer:
        if self.explains:
            self.inference.require_use("heads")
            message = lacking_weights(self.inference.manifest, "the explanation of a sparse match")
            if message:
                raise NotExported(message)
        query, documents = await self._prepared(texts)
        weights = self.artifact.path(TASK_WEIGHTS)
        last = self.inference.config.num_hidden_layers
        return SparseScorer(documents, query, task, weights, last)

    async def _late(self, texts: RankTexts, late: LateInteraction) -> Scorer:
        inference = self.inference
        limits = late.query_tokens, late.document_tokens
        query, documents = await self._prepared(
            replace(texts, prompts=(ROLES[0], ROLES[1])), limits
        )
        features = late.vector_size(inference.config.hidden_size) or 0
        mean = inference.sentence.similarity_fn_name == "meanmaxsim"
        return LateScorer(documents, PreparedRanking(query, documents, late, features, mean))

    async def _prepared(
        self, texts: RankTexts, limits: tuple[int | None, int | None] = (None, None)
    ) -> tuple[PreparedTexts, PreparedTexts]:
        """Tokenise the query, and the documents.

        Args:
            texts: query and documents.
            limits: maximum tokens of the query, and of a document; the model's if None.

        """
        of_query, of_documents = (
            replace(texts.options, naming=naming, prompt_name=prompt, max_tokens=limit)
            for naming, prompt, limit in zip((QUERY, DOCUMENT), texts.prompts, limits, strict=True)
        )
        prepare, caller, lane = self.inference.prepare, self.caller, self._lane
        query = await prepare([texts.query], of_query, caller, lane, self.engine)
        documents = await prepare(
            texts.documents, of_documents, caller, lane, self.engine, query.characters
        )
        return query, documents

    @property
    def _lane(self) -> LaneName:
        maps = self.explains and not self.inference.manifest.static
        return "attention" if maps else "encode"


def _check_unnamed(named: tuple[str | None, str | None], why: str) -> None:
    """Raise if the caller has named a prompt that the model has no place for."""
    for name, side in zip(named, ROLES, strict=True):
        if name is not None:
            raise Unprocessable(f"{side}_prompt_name is not for this model, which {why}")
