"""The time of a decomposition beside that of encoding, measured once for each engine.

Its graphs are loaded at the first decomposition, so that is when it is measured: a service that is
never asked for one loads nothing.
"""

from __future__ import annotations

import numpy as np

from model.artifact.decomposition import DecompositionStep
from model.config.encoder import EncoderConfig
from service.engines.contract import DecomposeTask
from service.inference.core import Inference
from service.inference.explanation.decomposition import STEP_TOKENS
from service.scheduler.scheduler import Scheduler
from service.scheduler.submission import Caller

MEASURED_TOKENS = 32
"""Tokens of the text that is measured."""
ASSUMED = 1.0
"""Cost of a part for an engine whose batches are not measured, as the fake one."""


async def part_cost(inference: Inference, scheduler: Scheduler, caller: Caller) -> float:
    """Return the time of one part of one token in a layer, as a multiple of encoding a token there.

    Of two steps the second counts, as the first loads the graphs.

    Raises:
        EngineTimeout: the deadline came.
        ServiceError: the engine failed.

    """
    engine, costs, config = scheduler.engine, inference.part_costs, inference.config
    alone = scheduler.seconds_alone("attention", STEP_TOKENS)
    if engine.name not in costs and alone:
        step = _step(config)
        rows, parts = step.parts.shape[:2]
        for _ in range(2):
            tasks = [DecomposeTask(step, STEP_TOKENS)]
            (done,) = await scheduler.resume("attention", tasks, caller=caller)
        a_token = alone * engine.concurrency / STEP_TOKENS
        seconds = done.inference_seconds * config.num_hidden_layers
        costs[engine.name] = seconds / (rows * parts * a_token)
    return costs.get(engine.name, ASSUMED)


def _step(config: EncoderConfig) -> DecompositionStep:
    """Return all rows of the first layer of a text."""
    rng, tokens = np.random.default_rng(0), MEASURED_TOKENS
    states = rng.standard_normal((tokens, config.hidden_size), np.float32)
    parts = np.stack([states] * (tokens + 1), axis=1)
    shape = config.num_key_value_heads, tokens, tokens + 1, config.head_size
    return DecompositionStep(parts, 0, 0, states, rng.standard_normal(shape, np.float32))
