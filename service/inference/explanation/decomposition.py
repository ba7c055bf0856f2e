"""Decomposition of a text's vector into shares of its input tokens, in steps of some rows.

The steps of each layer are tasks of the attention lane, so that other requests can run between
them. Memory holds the shares of two layers: the current one and the next.

Notation: S tokens of one text, P = S + 1 parts (its state and their shares), C rows of a step,
H hidden size, L layers, m heads of keys and values, p size of a head.
"""

from __future__ import annotations

import asyncio
import bisect
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from model.artifact.decomposition import DecompositionStep
from model.config.encoder import EncoderConfig
from model.numerics.pooling import PoolingModes, modes_of, pooled_parts
from service.engines.contract import DecomposeTask, Floats, Output, Pooling, TextTask
from service.errors import ReplyTooLarge
from service.inference.core import Inference
from service.inference.encoding import PreparedTexts
from service.inference.tokenization.text import Text
from service.scheduler.call import Call
from service.scheduler.outputs import requested
from service.scheduler.scheduler import Scheduler

STEP_TOKENS = 256
"""Maximum work of a step, in the time of encoding that number of tokens."""
_BEFORE = -1
"""Layer number of the step that projects hidden state 0, before the first layer."""


@dataclass(frozen=True, slots=True)
class DecomposedText:
    """A pooled vector, and the share of each input token in it."""

    pooled: Floats
    """`[H]` per mode, not normalised; computed by the float32 encoder whatever the precision."""
    shares: Floats
    """`[S, H]` per mode, which sum to `pooled`."""


def decomposition_bytes(tokens: int, config: EncoderConfig) -> int:
    """Return the peak memory of the decomposition of a text, in bytes."""
    values = config.num_key_value_heads * config.head_size
    return 4 * 2 * tokens * (tokens + 1) * (config.hidden_size + values)


def check_memory(
    texts: Sequence[Text], configs: tuple[EncoderConfig, EncoderConfig], limit: int
) -> None:
    """Raise `ReplyTooLarge` if the shares of a text would take more than `limit` bytes of memory.

    First and second texts of the pairs take turns; the encoders of both have `configs`.
    """
    for number, text in enumerate(texts):
        tokens, config = len(text.input_ids), configs[number % 2]
        if (size := decomposition_bytes(tokens, config)) > limit:
            lengths = range(1, tokens)
            fits = bisect.bisect(
                lengths, limit, key=functools.partial(decomposition_bytes, config=config)
            )
            shorter = f"texts of up to {fits} tokens fit: send shorter ones, or "
            raise ReplyTooLarge(
                f"inputs[{number // 2}][{number % 2}] has {tokens} tokens: its decomposition takes "
                f"{size} bytes of memory, more than {limit} (--max-bytes-in-flight); "
                f'{"" if text.picture else shorter}leave "decomposition" out of `include`'
            )


def decomposition_tokens(tokens: int, layer: int, config: EncoderConfig, part_cost: float) -> int:
    """Return the cost of decomposing a text up to hidden state `layer`, in tokens to encode.

    `part_cost` is the time of one part of one token in a layer, divided by the time of encoding a
    token in that layer.
    """
    return step_tokens(tokens, tokens + 1, config, part_cost) * layer


def pair_shares(first: DecomposedText, second: DecomposedText) -> Floats:
    """Return pᵢ · qⱼ / (‖p‖ ‖q‖), `[S_a, S_b]`, whose sum is cos(p, q); 0 if p or q is 0."""
    products: Floats = first.shares @ second.shares.T
    scale = float(np.linalg.norm(first.pooled)) * float(np.linalg.norm(second.pooled))
    return products / np.float32(scale) if scale > 0 else np.zeros_like(products)


async def decompose(
    prepared: PreparedTexts,
    config: EncoderConfig,
    text: Text,
    pooling: Pooling,
    part_cost: float,
    pooled: Callable[[Floats, PoolingModes, int], Floats] = pooled_parts,
) -> DecomposedText:
    """Decompose a text's vector, whose request the scheduler has admitted.

    See `decomposition_tokens` for `part_cost`. `pooled` maps parts of states, pooling and first
    pooled token to shares.
    """
    submit = functools.partial(prepared.submit, "attention", resumed=True)
    segment, cost = text.segment, functools.partial(step_tokens, config=config, part_cost=part_cost)
    first = TextTask(text.input_ids, text.segment_ids, hidden_layers=(0,), pixels=text.pixels)
    states = (await submit([first]))[0].hidden[0]
    parts = await asyncio.to_thread(_own_shares, states, states)  # entering the next layer
    values = parts[None, :, :, :0]  # `[m, S, P, p]`: the next layer's value projections of parts
    if pooling.layer:
        step = DecompositionStep(np.stack([states, states], axis=1), _BEFORE, segment=segment)
        (output,) = await submit([DecomposeTask(step, cost(len(states), 2))])
        projected = requested(requested(output.decomposed).values)
        values = await asyncio.to_thread(_own_shares, projected[:, :, 0], projected[:, :, 1])
    for layer in range(pooling.layer):
        last = layer + 1 == config.num_hidden_layers
        every = _rows(layer, len(parts), pooling, part_cost / config.num_hidden_layers)
        # np.empty: the worker threads fault the pages of this large array in, in parallel
        next_parts = np.empty_like(parts)
        next_values = values[:, :0] if last else np.empty_like(values)
        if sum(map(len, every)) < len(parts):
            await asyncio.to_thread(next_parts.fill, 0)
        states = parts[:, 0].copy()
        tasks, reduce = [], []
        for rows in every:
            entering = parts[rows.start : rows.stop]
            step = DecompositionStep(entering, layer, rows.start, states, values, segment)
            tasks.append(DecomposeTask(step, cost(len(rows), entering.shape[1]), last))
            reduce.append(functools.partial(_copy_rows, next_parts, next_values, rows))
        await submit(tasks, reduce)
        parts, values = next_parts, next_values
    shares = await asyncio.to_thread(pooled, parts, pooling.mode, pooling.first_token)
    return DecomposedText(shares[0], shares[1:])


def _rows(layer: int, count: int, pooling: Pooling, row_cost: float) -> Sequence[range]:
    """Return the rows of each step; in the pooled layer only the rows that pooling uses."""
    if layer + 1 == pooling.layer:
        ends, modes = {"cls": pooling.first_token, "last": count - 1}, {*modes_of(pooling.mode)}
        if modes <= ends.keys():
            return [range(row, row + 1) for row in sorted({ends[mode] for mode in modes})]
    size = max(1, int(STEP_TOKENS / (row_cost * (count + 1))))
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def _copy_rows(parts: Floats, values: Floats, rows: range, output: Output) -> None:
    """Copy a step's rows into the input of the next layer, in the thread that computed them."""
    decomposed = requested(output.decomposed)
    parts[rows.start : rows.stop] = decomposed.parts
    if decomposed.values is not None:
        values[:, rows.start : rows.stop] = decomposed.values


def _own_shares(states: Floats, shares: Floats) -> Floats:
    """Return parts in which each token has only its own share: two `[…, S, n]` → `[…, S, P, n]`."""
    count, size = states.shape[-2:]
    parts = np.zeros((*states.shape[:-1], count + 1, size), np.float32)
    parts[..., 0, :] = states
    own = np.arange(count)
    parts[..., own, own + 1, :] = shares
    return parts


def step_tokens(rows: int, parts: int, config: EncoderConfig, part_cost: float) -> int:
    """Return the cost of some rows and parts in one layer, in tokens to encode."""
    return math.ceil(part_cost * rows * parts / config.num_hidden_layers)


MEASURED_TOKENS = 32
"""Length of the measured text, in tokens."""
ASSUMED = 1.0
"""Cost of a part on an engine without measured batches, such as the fake engine."""


async def part_cost(inference: Inference, scheduler: Scheduler, caller: Call) -> float:
    """Return the cost of one part of one token in a layer, as a multiple of encoding a token there.

    It is measured at the first decomposition of an engine, which loads the graphs: the second of
    two steps.
    """
    engine, costs, config = scheduler.engine, inference.part_costs, inference.config
    alone = scheduler.seconds_alone(STEP_TOKENS)
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
