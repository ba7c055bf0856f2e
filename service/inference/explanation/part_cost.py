"""Time of a decomposition as a multiple of encoding, measured once per engine.

The graphs of the decomposition are loaded and measured at its first request, so that a service
without such requests does not load them.
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
"""Length of the measured text, in tokens."""
ASSUMED = 1.0
"""Cost of a part on an engine without measured batches, such as the fake engine."""


async def part_cost(inference: Inference, scheduler: Scheduler, caller: Caller) -> float:
    """Return the cost of one part of one token in a layer, as a multiple of encoding a token there.

    The second of two steps is measured, because the first one loads the graphs.

    Raises:
        EngineTimeout: the deadline has passed.
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
    """Return a step of all rows of a random text's first layer."""
    rng, tokens = np.random.default_rng(0), MEASURED_TOKENS
    states = rng.standard_normal((tokens, config.hidden_size), np.float32)
    parts = np.stack([states] * (tokens + 1), axis=1)
    shape = config.num_key_value_heads, tokens, tokens + 1, config.head_size
    return DecompositionStep(parts, 0, 0, states, rng.standard_normal(shape, np.float32))
