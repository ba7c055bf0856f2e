"""Encoders of the texts and pictures of an explanation: one, or two towers of a model.

Notation: S tokens of a text or picture, H hidden size, D features of a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from model.artifact.decomposition import DecompositionStep
from model.config.encoder import EncoderConfig
from service.engines.contract import DecomposeTask, Floats, Pooling, TextTask
from service.inference.core import Inference
from service.inference.encoding import PreparedTexts
from service.inference.explanation.cost import Costs, Load, Side
from service.inference.explanation.decomposition import (
    STEP_TOKENS,
    DecomposedText,
    TextDecomposition,
)
from service.inference.explanation.spans import ExplainOptions
from service.inference.tokenization.text import Text
from service.scheduler.call import Call, PendingWork
from service.scheduler.scheduler import Scheduler

MEASURED_TOKENS = 32
"""Length of the measured text, in tokens."""
ASSUMED = 1.0
"""Cost of a part on an engine without measured batches, such as the fake engine."""


@dataclass(eq=False)
class Tower:
    """Encoder of one or both sides of each pair."""

    inference: Inference
    options: ExplainOptions
    """Options of the request, with the layer of this encoder."""
    prepared: PreparedTexts
    """Texts or pictures of its sides, its scheduler, and the client of the request."""
    part_cost: float = 0.0
    """See `decomposition_tokens`; 0 until it is measured."""

    async def measure(self) -> None:
        """Measure the cost of a decomposition, if one is requested.

        Raises:
            EngineTimeout: the deadline has passed.
            ServiceError: the engine failed.

        """
        if self.options.decomposition:
            prepared = self.prepared
            scheduler, caller = prepared.scheduler, prepared.caller
            self.part_cost = await part_cost(self.inference, scheduler, caller)

    def load(self, sides: Sequence[Side], texts: int) -> Load:
        """Return the work on some sides, of which this encoder has `texts` of each pair."""
        costs = Costs(self.options, self.inference.config, self.part_cost, texts)
        return Load(self.prepared.scheduler, costs, sides)

    def promise(self, promise: PendingWork) -> None:
        """PendingWork the work of the request to the scheduler."""
        caller = replace(self.prepared.caller, pending=promise)
        self.prepared = replace(self.prepared, caller=caller)

    def task(self, text: Text) -> TextTask:
        """Return the forward pass that gives a text's vector, and its states if they are needed."""
        kept = self.options.pairs or self.options.occlusion
        layers = (self.options.layer,) if kept else ()
        pooling = self.pooling_of(text)
        return TextTask(
            text.input_ids, text.segment_ids, layers, pooling=pooling, pixels=text.pixels
        )

    def first_pooled(self, text: Text) -> int:
        """Return the index of the first pooled token."""
        return text.first_pooled(self.inference.sentence)

    def pooling_of(self, text: Text) -> Pooling:
        """Return the pooling of a text."""
        mode = self.options.pooling or self.inference.sentence.pooling
        return Pooling(self.options.layer, mode, self.first_pooled(text))

    def finish(self, pooled: Floats) -> Floats:
        """Return the vector of a pooled vector."""
        return self.inference.vectors.finish([pooled], self.options.pooling)[0]

    def projected(self, states: Floats) -> Floats:
        """Return each token's state as if it alone were pooled: `[S, H]` → `[S, D]`."""
        vectors, pooling = self.inference.vectors, self.options.pooling
        return np.stack(vectors.finish([*states], pooling, normalize=False))

    async def decompose(self, text: Text) -> DecomposedText:
        """Return a text's unnormalised vector, and the share of each input token in it.

        Raises:
            EngineTimeout: the deadline has passed.
            ServiceError: the engine failed.

        """
        prepared, pooling = self.prepared, self.pooling_of(text)
        decomposed = await TextDecomposition(
            prepared.scheduler,
            self.inference.config,
            text,
            pooling,
            prepared.timings,
            self.part_cost,
            prepared.caller,
            self.inference.vectors.pooled_parts,
        ).result()
        return self.of_vector(decomposed.pooled, decomposed.shares)

    def of_vector(self, pooled: Floats, shares: Floats) -> DecomposedText:
        """Return a text's unnormalised vector and its shares, from the pooled vector's."""
        vectors, pooling = self.inference.vectors, self.options.pooling
        (vector,) = vectors.finish([pooled], pooling, normalize=False)
        return DecomposedText(vector, vectors.shares(shares, pooling))


async def part_cost(inference: Inference, scheduler: Scheduler, caller: Call) -> float:
    """Return the cost of one part of one token in a layer, as a multiple of encoding a token there.

    It is measured at the first decomposition of an engine, which loads the graphs: the second of
    two steps.
    """
    engine, costs, config = scheduler.engine, inference.part_costs, inference.config
    alone = scheduler.seconds_alone("attention", STEP_TOKENS)
    if engine.name not in costs and alone:
        step = _step(config)
        rows, parts = step.parts.shape[:2]
        for _ in range(2):
            tasks = [DecomposeTask(step, STEP_TOKENS)]
            (done,) = await scheduler.submit("attention", tasks, caller, resumed=True)
        a_token = alone * engine.concurrency / STEP_TOKENS
        seconds = done.inference_seconds * config.num_hidden_layers
        costs[engine.name] = seconds / (rows * parts * a_token)
    return costs.get(engine.name, ASSUMED)


def _step(config: EncoderConfig) -> DecompositionStep:
    """Return a step of all rows of a random text's first layer."""
    rng, tokens = np.random.default_rng(0), MEASURED_TOKENS
    states = rng.standard_normal((tokens, config.hidden_size), np.float32)
    parts = np.stack([states] * (tokens + 1), axis=1)
    shape = config.num_key_value_heads, tokens, tokens + 1, config.head_size
    return DecompositionStep(parts, 0, 0, states, rng.standard_normal(shape, np.float32))
