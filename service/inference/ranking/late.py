"""MaxSim scores of a late-interaction model, and the share of each document token.

Notation: Q vectors of the query, S tokens of one document, D features of a token's vector.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from model.numerics.late_interaction import Role, max_sim
from service.engines.contract import Floats, Ids, Output, TextTask
from service.inference.explanation.token_matches import max_sim_matches
from service.inference.ranking.scorer import Method, QueryPass, Scorer, Scoring
from service.inference.tasks.late_interaction import PreparedRanking
from service.inference.timings import Timings
from service.inference.tokenization.text import Text
from service.scheduler.outputs import requested


@dataclass
class LateScorer(Scorer, QueryPass):
    """Scores of a model with a vector for each token."""

    ranking: PreparedRanking
    _query: Floats = field(init=False)
    """`[Q, D]`."""

    @property
    def timings(self) -> Timings:
        """Timings of both tokenisations and of the computed passes."""
        return self.ranking.timings

    @property
    def method(self) -> Method:
        """Matches of the query's tokens."""
        return "matches"

    @property
    def scoring(self) -> Scoring:
        """Name of the score."""
        return "meanmaxsim" if self.ranking.mean else "maxsim"

    def query_task(self, unseen: tuple[int, ...] = ()) -> TextTask:
        """Return the forward pass of the query; expansion tokens stay."""
        (task,) = self.ranking.tasks()[:1]
        return replace(task, unseen=(*unseen, *task.unseen))

    def take_query(self, output: Output, unseen: tuple[int, ...] = ()) -> None:
        """Keep the vectors of the query's tokens that are not left out."""
        kept = np.setdiff1d(self._kept(self.ranking.query_ids, "query"), unseen)
        self._query = requested(output.scores)[kept]

    def query_tokens(self, number: int) -> range:
        """Return the indices of the query's tokens without expansion tokens."""
        return range(len(self.query_text(number).input_ids))

    def query_text(self, number: int) -> Text:
        """Return the tokens of the query without expansion tokens."""
        del number
        return self.ranking.query.texts[0]

    def task(self, number: int, unseen: tuple[int, ...] = (), *, shares: bool = False) -> TextTask:
        """Return the forward pass of a document."""
        del shares
        text = self.documents.texts[number]
        shape = len(text.input_ids), self.ranking.features
        return TextTask(text.input_ids, text.segment_ids, scores=shape, unseen=unseen)

    def score(self, number: int, output: Output, unseen: tuple[int, ...] = ()) -> float:
        """Return MaxSim, or its mean over the query's vectors.

        A document whose last vector is left out has score 0, the sum of no match.
        """
        kept = np.setdiff1d(self._of_document(number), unseen)
        if unseen and not len(kept):
            return 0.0
        return max_sim(self._query, requested(output.scores)[kept]) / self._divisor

    def shares(self, number: int, output: Output) -> Floats:
        """Return the sum of each token's matches, `[S]`; see `max_sim_matches`."""
        vectors, kept = requested(output.scores), self._of_document(number)
        queries = np.arange(len(self._query))
        matches = max_sim_matches(self._query, vectors, (queries, kept))
        shares = np.zeros(len(vectors), np.float64)
        places = [match.document for match in matches]
        np.add.at(shares, places, [match.score / self._divisor for match in matches])
        return shares.astype(np.float32)

    @property
    def _divisor(self) -> int:
        return max(1, len(self._query)) if self.ranking.mean else 1

    def _of_document(self, number: int) -> Ids:
        return self._kept(self.documents.texts[number].input_ids, "document")

    def _kept(self, ids: Ids, role: Role) -> Ids:
        """Return the indices of a text's tokens that have a vector."""
        numbers = np.arange(len(ids), dtype=np.float32)[:, None]
        return self.ranking.late.kept(numbers, ids, role)[:, 0].astype(np.int64)
