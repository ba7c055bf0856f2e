"""Interface of the scores of documents with a query: one class for each kind of model.

Notation: S tokens that the model reads for a document, D of them tokens of the document itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from model.artifact.sentence import SimilarityName
from service.engines.contract import Floats, Output, TextTask
from service.inference.encoding import PreparedTexts
from service.inference.timings import Timings
from service.inference.tokenization.text import Text

Scoring = SimilarityName | Literal["sparse", "hybrid", "logit"]
Method = Literal["pairs", "matches", "weights", "occlusion"]
"""Origin of tokens' shares: row sums of token pairs; MaxSim matches; weights of words; or the loss
of score without the token. Only the loss does not sum to the score."""


@dataclass
class Scorer(ABC):
    """Scores of the documents of one request."""

    documents: PreparedTexts
    """Texts that the model reads, one for each document."""

    @property
    @abstractmethod
    def method(self) -> Method:
        """Origin of the tokens' shares."""

    @property
    @abstractmethod
    def scoring(self) -> Scoring:
        """Name of the score."""

    @property
    def timings(self) -> Timings:
        """Timings of the tokenisation and of the computed passes."""
        return self.documents.timings

    @property
    def additive(self) -> bool:
        """Whether the tokens' shares come with the score, and sum to it."""
        return self.method != "occlusion"

    @abstractmethod
    def query_tokens(self, number: int) -> range:
        """Return the indices of the query's tokens in the text that is read for a document.

        These are the indices in the query's own text if there is a forward pass of the query.
        """

    @abstractmethod
    def query_text(self, number: int) -> Text:
        """Return the tokens of the query alone, as they are read for a document."""

    def leaves_no_query(self, unseen: tuple[int, ...]) -> bool:
        """Return whether the query has no tokens, or no pooled ones, beside those left out."""
        return len(unseen) == len(self.query_tokens(0))

    @abstractmethod
    def task(self, number: int, unseen: tuple[int, ...] = (), *, shares: bool = False) -> TextTask:
        """Return the forward pass of a document.

        Args:
            number: index of the document.
            unseen: indices of tokens to leave out: neither attended to nor pooled.
            shares: whether `shares` will be computed from the output.

        """

    @abstractmethod
    def score(self, number: int, output: Output, unseen: tuple[int, ...] = ()) -> float:
        """Return the score of a document from the output of `task`."""

    def shares(self, number: int, output: Output) -> Floats | None:
        """Return the share of each token of a document in its score, `[D]`; None if not `additive`.

        Args:
            number: index of the document.
            output: output of `task` with shares.

        """
        del number, output
        return None

    def parts(
        self, number: int, output: Output, unseen: tuple[int, ...] = ()
    ) -> Mapping[str, float] | None:
        """Return the scores whose weighted mean is the score, by name; None for other scores."""
        del number, output, unseen
        return None

    @property
    def empty_score(self) -> float:
        """Score of a document without any token."""
        return 0.0

    def leaves_nothing(self, number: int, unseen: tuple[int, ...]) -> bool:
        """Return whether a document has no tokens, or no pooled ones, beside those left out."""
        return len(unseen) == len(self.documents.texts[number].input_ids)

    def own_tokens(self, number: int) -> range:
        """Return the indices of a document's tokens in the text that the model reads."""
        return range(len(self.documents.texts[number].input_ids))

    def document(self, number: int) -> Text:
        """Return the tokens of a document alone."""
        return part_of(self.documents.texts[number], self.own_tokens(number))

    def removable(self, number: int) -> list[int]:
        """Return the indices, among the document's own tokens, that occlusion leaves out.

        Special tokens and tokens of a prompt stay.
        """
        mask = self.document(number).special_tokens_mask
        return [token for token, special in enumerate(mask) if not special]


class QueryPass(ABC):
    """Forward pass of the query alone, which a scorer has unless it reads the query each time."""

    @abstractmethod
    def query_task(self, unseen: tuple[int, ...] = ()) -> TextTask:
        """Return the forward pass of the query.

        Args:
            unseen: indices of the query's tokens to leave out.

        """

    @abstractmethod
    def take_query(self, output: Output, unseen: tuple[int, ...] = ()) -> None:
        """Keep the output of `query_task`."""


@dataclass
class SeparateScorer(Scorer, QueryPass):
    """Scores of a model that reads the query and each document by themselves."""

    query: PreparedTexts

    @property
    def timings(self) -> Timings:
        """Timings of both tokenisations and of the computed passes."""
        return self.query.timings + self.documents.timings

    def query_tokens(self, number: int) -> range:
        """Return the indices of all tokens of the query."""
        del number
        return range(len(self.query.texts[0].input_ids))

    def query_text(self, number: int) -> Text:
        """Return the tokens of the query."""
        del number
        return self.query.texts[0]


def part_of(text: Text, tokens: range) -> Text:
    """Return some adjacent tokens of a text."""
    if len(tokens) == len(text.input_ids):
        return text
    part = slice(tokens.start, tokens.stop)
    return text.in_arrays().of(part, cut=False)
