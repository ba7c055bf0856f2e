"""MaxSim of a query and documents, as a late-interaction model scores them.

Notation: S tokens of one text, D features of a token's vector.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from model.artifact.late_interaction import LateInteraction, max_sim
from service.engines.contract import Floats, Ids, TextTask
from service.inference.core import Inference
from service.inference.encoding import PreparedTexts
from service.inference.timings import Timings
from service.inference.tokenization.tokenizer import Options
from service.scheduler.submission import Caller


@dataclass(frozen=True)
class PreparedRanking:
    """A tokenised query and documents, and how their tokens become vectors."""

    query: PreparedTexts
    documents: PreparedTexts
    late: LateInteraction
    features: int
    """D."""
    mean: bool
    """Whether a score is divided by the number of the query's vectors."""

    @property
    def query_ids(self) -> Ids:
        """Of the query and of what fills it up."""
        return self.late.filled_up(self.query.texts[0].input_ids)

    @property
    def vector_bytes(self) -> int:
        """Bytes of all token vectors, which are in memory until the last is computed."""
        tokens = sum(len(text.input_ids) for text in self.documents.texts) + len(self.query_ids)
        return 4 * self.features * tokens

    @property
    def timings(self) -> Timings:
        """Of both tokenisations, one after the other."""
        both = self.query.timings + self.documents.timings
        both.tokens += self.late.missing(len(self.query.texts[0].input_ids))
        return both

    def tasks(self) -> list[TextTask]:
        """The query, then the documents."""
        text, ids = self.query.texts[0], self.query_ids
        more = len(ids) - len(text.input_ids)
        segments = np.pad(text.segment_ids, (0, more))
        unseen = self.late.unseen_of(len(text.input_ids))
        query = TextTask(ids, segments, scores=(len(ids), self.features), unseen=tuple(unseen))
        return [
            query,
            *(
                TextTask(
                    text.input_ids,
                    text.segment_ids,
                    scores=(len(text.input_ids), self.features),
                )
                for text in self.documents.texts
            ),
        ]

    def scores(self, vectors: Sequence[Floats]) -> list[Floats]:
        """`[1]` a document, of the vectors `[S, D]` of the query and the documents."""
        query = self.late.kept(vectors[0], self.query_ids, "query")
        divisor = max(1, len(query)) if self.mean else 1
        found = []
        for text, own in zip(self.documents.texts, vectors[1:], strict=True):
            document = self.late.kept(own, text.input_ids, "document")
            found.append(np.array([max_sim(query, document) / divisor], np.float32))
        return found


async def prepare_ranking(
    inference: Inference,
    late: LateInteraction,
    query: str,
    documents: Sequence[str],
    options: Options,
    caller: Caller,
) -> PreparedRanking:
    """Tokenise a query and documents, each as its role asks.

    Args:
        inference: of the model.
        late: of the model.
        query: what documents are scored for.
        documents: at least one.
        options: how both are cut.
        caller: who asks.

    Raises:
        Unprocessable: too many documents, or a text that does not fit the model.
        EngineUnavailable: the engine has failed, or cannot be started.
        Overloaded: the queue has no room, or the deadline cannot be met.

    """
    of_query = replace(
        options, prompt_name="query", max_tokens=late.query_tokens, naming="the query"
    )
    of_documents = replace(
        options, prompt_name="document", max_tokens=late.document_tokens, naming="texts[{}]"
    )
    return PreparedRanking(
        await inference.prepare([query], of_query, caller, "encode"),
        await inference.prepare(documents, of_documents, caller, "encode"),
        late,
        late.vector_size(inference.config.hidden_size) or 0,
        inference.sentence.similarity_fn_name == "meanmaxsim",
    )


async def rank(ranking: PreparedRanking, timings: Timings) -> list[Floats]:
    """The score `[1]` of each document: MaxSim, or its mean over the query's vectors.

    Args:
        ranking: the texts.
        timings: of the request, which what is computed adds to.

    Raises:
        NotVerified: vectors failed the artifact's verification.
        Overloaded: the queue has no room, or the deadline cannot be met.
        ServiceError: the engine failed.

    """
    ranking.documents.require_use("vectors")
    scheduler, caller = ranking.documents.scheduler, ranking.documents.caller
    results = await scheduler.submit("encode", ranking.tasks(), caller)
    timings.add(results)
    vectors = [result.output.scores for result in results]
    return await asyncio.to_thread(ranking.scores, vectors)
