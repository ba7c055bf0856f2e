"""Which words two sparse vectors share, and the tokens that made their weights.

Notation: S tokens of one text, V words of the vocabulary, n shared words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from model.artifact.task import TaskConfig
from model.artifact.verification import USES
from model.artifact.word_logits import word_logits
from model.config.encoder import EncoderConfig
from service.engines.contract import Floats, Ids, Output, TextTask
from service.inference.encoding import PreparedTexts
from service.inference.explanation.token_matches import PairMatches, TokenMatch
from service.inference.timings import Timings
from service.inference.tokenization.tokenizer import TokenizedText


@dataclass(frozen=True)
class SparseMatcher:
    """The pairs of one request to a sparse encoder."""

    prepared: PreparedTexts
    """The first and the second text of each pair, in turn."""
    task: TaskConfig
    weights: Path
    """Of the task head."""
    config: EncoderConfig

    @property
    def engine(self) -> str:
        """Name of the engine that computes them."""
        return self.prepared.engine

    @property
    def timings(self) -> Timings:
        """Of the tokenisation, and of what was computed."""
        return self.prepared.timings

    @property
    def texts(self) -> list[TokenizedText]:
        """Of all pairs."""
        return self.prepared.texts

    @property
    def vector_bytes(self) -> int:
        """Bytes of all vectors and hidden states, which are in memory until the last is there."""
        tokens = sum(len(text.input_ids) for text in self.texts)
        return 4 * (self.task.outputs * len(self.texts) + self.config.hidden_size * tokens)

    async def matches(self) -> list[PairMatches]:
        """One a pair, in order.

        Raises:
            Overloaded: the queue has no room, or the deadline cannot be met.
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
        outputs = [result.output for result in done]
        return await asyncio.to_thread(self._found, outputs)

    def _found(self, outputs: Sequence[Output]) -> list[PairMatches]:
        pairs = zip(outputs[::2], outputs[1::2], strict=True)
        return [self._of_pair(one, other) for one, other in pairs]

    def _of_pair(self, one: Output, other: Output) -> PairMatches:
        """The words that both vectors have, that of the largest product first."""
        a, b = np.asarray(one.scores), np.asarray(other.scores)
        products = a * b
        words = np.flatnonzero(products)
        words = words[np.argsort(-products[words], kind="stable")]
        makers = [self._makers(output.hidden[0], words) for output in (one, other)]
        columns = (*makers, products[words], words)
        matches = [TokenMatch(*each) for each in zip(*(c.tolist() for c in columns), strict=True)]
        return PairMatches(float(np.dot(a.astype(np.float64), b)), matches)

    def _makers(self, states: Floats, words: Ids) -> Ids:
        """Of each word the token with the largest logit: all of a maximum, most of a sum."""
        made: Ids = word_logits(self.weights, self.task, states, words).argmax(axis=0)
        return made
