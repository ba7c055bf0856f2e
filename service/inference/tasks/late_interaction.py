"""MaxSim scores of documents for a query, by a late-interaction model.

Notation: S tokens of one text, D features of a token's vector.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from model.numerics.late_interaction import LateInteraction, max_sim
from service.engines.contract import Floats, Ids, TextTask
from service.inference.core import Inference
from service.inference.encoding import PreparedTexts
from service.inference.outputs.multivector import query_task
from service.inference.timings import Timings
from service.inference.tokenization.tokenizer import Options
from service.scheduler.call import Call
from service.scheduler.outputs import requested


@dataclass(frozen=True)
class PreparedRanking:
    """Tokenised query and documents, and the model's options of late interaction."""

    query: PreparedTexts
    documents: PreparedTexts
    late: LateInteraction
    features: int
    """Number D of features of a token's vector."""
    mean: bool
    """Whether scores are divided by the number of the query's vectors."""

    @property
    def query_ids(self) -> Ids:
        """Token ids of the query, including its expansion tokens."""
        return self.late.filled_up(self.query.texts[0].input_ids)

    @property
    def vector_bytes(self) -> int:
        """Bytes of all token vectors, which are in memory together."""
        tokens = sum(len(text.input_ids) for text in self.documents.texts) + len(self.query_ids)
        return 4 * self.features * tokens

    @property
    def timings(self) -> Timings:
        """Timings of both tokenisations, including the tokens of query expansion."""
        timings = self.query.timings + self.documents.timings
        timings.tokens += self.late.missing(len(self.query.texts[0].input_ids))
        return timings

    def tasks(self) -> list[TextTask]:
        """Return the forward passes of the query and of each document, in this order."""
        return [
            query_task(self.late, self.query.texts[0], self.features),
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
        """Compute the score `[1]` of each document.

        Args:
            vectors: token vectors `[S, D]` of the query, then of each document.

        """
        query = self.late.kept(vectors[0], self.query_ids, "query")
        divisor = max(1, len(query)) if self.mean else 1
        scores = []
        for text, own in zip(self.documents.texts, vectors[1:], strict=True):
            document = self.late.kept(own, text.input_ids, "document")
            scores.append(np.array([max_sim(query, document) / divisor], np.float32))
        return scores


async def prepare_ranking(
    inference: Inference,
    late: LateInteraction,
    query: str,
    documents: Sequence[str],
    options: Options,
    caller: Call,
) -> PreparedRanking:
    """Tokenise a query and documents, with the prompt and length limit of each role.

    Args:
        inference: inference of the model.
        late: late-interaction options of the model.
        query: query that documents are scored against.
        documents: documents, at least one.
        options: options of truncation.
        caller: client and deadline of the request.

    Raises:
        Unprocessable: there are too many documents, or a text does not fit the model.
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
    """Compute the score `[1]` of each document: MaxSim, or its mean over the query's vectors.

    Args:
        ranking: tokenised query and documents.
        timings: timings of the request, to which the computation is added.

    Raises:
        NotVerified: vectors failed the artifact's verification.
        Overloaded: the queue has no room, or the deadline cannot be met.
        ServiceError: the engine failed.

    """
    ranking.documents.require_use("vectors")
    scheduler, caller = ranking.documents.scheduler, ranking.documents.caller
    results = await scheduler.submit("encode", ranking.tasks(), caller)
    timings.add(results)
    vectors = [requested(result.value.scores) for result in results]
    return await asyncio.to_thread(ranking.scores, vectors)
