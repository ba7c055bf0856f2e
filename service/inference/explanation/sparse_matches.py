"""Words that two sparse vectors share, and the tokens that determined their weights.

Notation: S tokens of one text, V words of the vocabulary, n shared words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from model.artifact.mapped import mapped_tensors
from model.config.encoder import EncoderConfig
from model.config.precision import USES
from model.numerics.task_head import TaskConfig
from model.numerics.word_logits import word_logits
from service.engines.contract import Floats, Ids, Output, TextTask
from service.inference.encoding import PreparedTexts
from service.inference.explanation.token_matches import PairMatches, TokenMatch
from service.inference.timings import Timings
from service.inference.tokenization.tokenized import TokenizedText


@dataclass(frozen=True)
class SparseMatcher:
    """Matches of the pairs of one request to a sparse encoder."""

    prepared: PreparedTexts
    """The first and the second text of each pair, in turn."""
    task: TaskConfig
    weights: Path
    """File of the task head's weights."""
    config: EncoderConfig

    @property
    def engine(self) -> str:
        """Name of the engine that computes the texts."""
        return self.prepared.engine

    @property
    def timings(self) -> Timings:
        """Timings of the tokenisation and of the computed passes."""
        return self.prepared.timings

    @property
    def texts(self) -> list[TokenizedText]:
        """Texts of all pairs."""
        return self.prepared.texts

    @property
    def vector_bytes(self) -> int:
        """Bytes of all vectors and hidden states, which are in memory together."""
        tokens = sum(len(text.input_ids) for text in self.texts)
        return 4 * (self.task.outputs * len(self.texts) + self.config.hidden_size * tokens)

    async def matches(self) -> list[PairMatches]:
        """Return the matches of each pair, in order.

        Raises:
            Overloaded: the queue is full, or the deadline cannot be met.
            ServiceError: the engine failed.

        """
        prepared, last = self.prepared, self.config.num_hidden_layers
        for use in USES:
            prepared.require_use(use)
        tasks = [
            TextTask(
                text.input_ids, text.segment_ids, hidden_layers=(last,), scores=(self.task.outputs,)
            )
            for text in self.texts
        ]
        done = await prepared.scheduler.submit("attention", tasks, prepared.caller)
        prepared.timings.add(done)
        outputs = [result.value for result in done]
        return await asyncio.to_thread(self._matches, outputs)

    def _matches(self, outputs: Sequence[Output]) -> list[PairMatches]:
        pairs = zip(outputs[::2], outputs[1::2], strict=True)
        return [self._of_pair(first, second) for first, second in pairs]

    def _of_pair(self, first: Output, second: Output) -> PairMatches:
        """Return the words that both vectors have, by falling product of their weights."""
        a, b = np.asarray(first.scores), np.asarray(second.scores)
        products = a * b
        words = np.flatnonzero(products)
        words = words[np.argsort(-products[words], kind="stable")]
        tokens = [self._top_tokens(output.hidden[0], words) for output in (first, second)]
        columns = (*tokens, products[words], words)
        matches = [TokenMatch(*row) for row in zip(*(c.tolist() for c in columns), strict=True)]
        return PairMatches(float(np.dot(a.astype(np.float64), b)), matches)

    def _top_tokens(self, states: Floats, words: Ids) -> Ids:
        """Return the token with the largest logit of each word.

        If weights are maxima over tokens, the token determines the word's weight alone; if they are
        sums, it has the largest part of it.
        """
        logits = word_logits(mapped_tensors(self.weights), self.task, states, words)
        tokens: Ids = logits.argmax(axis=0)
        return tokens
