"""Deterministic engine without a model, for load tests and tests of the scheduler.

Its outputs depend only on the text's own token ids, and on a picture's pixels, so tests notice
swapped replies; its time is known exactly.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence

import numpy as np

from model.artifact.decomposition import DecomposedRows, DecompositionStep
from model.config.encoder import EncoderConfig
from model.numerics.pooling import modes_of
from model.runtimes.contract import HeadScores
from service.engines.contract import (
    DecomposeTask,
    Engine,
    Floats,
    MapsTask,
    Output,
    Target,
    TargetOutput,
    Task,
)


class FakeEngine(Engine):
    """Engine that sleeps `batch_seconds + token_seconds · tokens` and returns hashes of the ids."""

    name = "fake"
    provider = "none"

    def __init__(
        self,
        config: EncoderConfig,
        *,
        batch_seconds: float = 0.0,
        token_seconds: float = 0.0,
        concurrency: int = 1,
    ) -> None:
        self._config = config
        self._batch_seconds = batch_seconds
        self._token_seconds = token_seconds
        self.concurrency = concurrency
        self.hidden_size = config.hidden_size

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        """Return `expected(task)` of each task."""
        tokens = sum(task.tokens for task in tasks)
        # also a sleep of 0 gives up the GIL, as engines do
        time.sleep(self._batch_seconds + self._token_seconds * tokens)
        return [self.expected(task) for task in tasks]

    def expected(self, task: Task) -> Output:
        """Return the output of a task, whichever batch it is in."""
        if isinstance(task, MapsTask):
            maps = np.stack([self._map(task, head) for head in task.heads])
            return Output(
                maps=maps,
                value_products=_products(task) if task.values else None,
                head_scores=self._scores(task) if task.scores else None,
            )
        if isinstance(task, DecomposeTask):
            return Output(decomposed=self._decomposed(task.step))
        s, h = len(task.input_ids), self._config.hidden_size
        text = task.input_ids.tobytes() + b"|" + task.segment_ids.tobytes()
        text += repr(task.ablated).encode()
        text += b"" if task.pixels is None else task.pixels.tobytes()
        if task.unseen:
            text += repr(task.unseen).encode()
        hidden, of_maps = (
            [_numbers(text, f"hidden {n}", (s, h)) for n in layers]
            for layers in (task.hidden_layers, task.map_layers)
        )
        output = Output(hidden, map_states=[*of_maps])
        if task.pooling:
            asked = task.pooling
            what = f"pooled {asked.layer} {asked.mode}"
            what += f" without {asked.left_out}" if asked.left_out else ""
            output.pooled = _numbers(text, what, (h * len(modes_of(task.pooling.mode)),))
        if task.scores:
            output.scores = _numbers(text, "scores", task.scores)
        if task.target:
            output.target = _of_target(text, task.target, h)
        return output

    def _decomposed(self, step: DecompositionStep) -> DecomposedRows:
        """Return rows linear in the step's input, so that shares still sum to their state."""
        config, parts = self._config, step.parts
        if step.states is not None and step.values is not None:
            gathered = step.values.mean(axis=(0, 1, 3))[:, None]
            parts = (parts + gathered) * np.float32(0.5 + 0.1 * step.layer)
        if step.layer + 1 == config.num_hidden_layers:
            return DecomposedRows(parts, None)
        shape = (config.num_key_value_heads, *parts.shape[:2], config.head_size)
        return DecomposedRows(parts, np.broadcast_to(parts[None, :, :, :1], shape).copy())

    def _scores(self, task: MapsTask) -> HeadScores:
        """Return queries and keys from hashes, and their scaled dot products as scores."""
        p = self._config.head_size
        queries, keys = (_of_heads(task, what, p) for what in ("query", "key"))
        scores = queries @ keys.transpose(0, 2, 1) / np.float32(p**0.5)
        return HeadScores(queries, keys, scores)

    @staticmethod
    def _map(task: MapsTask, head: int) -> Floats:
        states = np.asarray(task.queries).tobytes()
        if task.keys is not task.queries:
            states += np.asarray(task.keys).tobytes()
        shape = (len(task.queries), len(task.keys))
        what = "" if task.kind == "encoder" else f"{task.kind} "
        weights = 1 + _numbers(states, f"{what}map {task.layer} {head}", shape)
        if task.kind == "decoder":
            weights = np.tril(weights)
        return weights / weights.sum(axis=-1, keepdims=True)


def _products(task: MapsTask) -> Floats:
    """Return the products of the heads' values, which have one feature per head."""
    what = "value" if task.kind == "encoder" else f"{task.kind} value"
    of_heads = _of_heads(task, what, len(task.heads))
    values = np.ascontiguousarray(of_heads.transpose(1, 0, 2))  # [S, heads, features]
    return np.matmul(values, values.transpose(0, 2, 1))


def _of_heads(task: MapsTask, what: str, features: int) -> Floats:
    """Return numbers of each head and key, `[heads, S, features]`."""
    states, shape = np.asarray(task.keys).tobytes(), (len(task.keys), features)
    return np.stack([_numbers(states, f"{what} {task.layer} {n}", shape) for n in task.heads])


def _of_target(text: bytes, target: Target, hidden_size: int) -> TargetOutput:
    text += b"|" + target.labels.tobytes() + repr((target.ablated, target.cross_ablated)).encode()
    shape = (len(target.labels), hidden_size)
    return TargetOutput(
        [_numbers(text, f"decoder {n}", shape) for n in target.hidden_layers],
        [_numbers(text, f"cross {n}", shape) for n in target.cross_layers],
        -_numbers(text, "logprobs", shape[:1]) if target.logprobs else None,
    )


def _numbers(text: bytes, what: str, shape: tuple[int, ...]) -> Floats:
    digest = hashlib.blake2b(what.encode(), digest_size=8)
    digest.update(text)
    seed = int.from_bytes(digest.digest())
    return np.random.default_rng(seed).random(shape, np.float32)
