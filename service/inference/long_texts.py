"""Texts beyond the model's limit, encoded in overlapping windows.

A window has the text's leading special and prompt tokens, some of its own tokens, and its closing
special tokens, as if the window were a text. Windows are equally long and start at equal distances.
Each token takes its vector from the window in which it is farthest from an edge, so that it has
as much context as possible on both sides; the text's own start and end are not edges.

Notation: S tokens of one text, H hidden size.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from model.numerics.pooling import modes_of
from service.engines.contract import Floats, Ids, Output, TextTask
from service.errors import InputTooLong, Unprocessable
from service.inference.encoding import PreparedTexts
from service.inference.outputs.field import TextArrays
from service.inference.plan import Plan
from service.inference.tokenization.text import Text

OVERLAP = 4
"""Neighbouring windows share at least this part of their own tokens, as 1 / `OVERLAP`."""
SINGLE_TOKENS = {"cls", "last"}
"""Poolings that take one token, which knows its own window only."""
Keep = Callable[[Output], None]
"""Function that stores the token vectors of a window, in the thread that computed them."""


@dataclass(frozen=True, slots=True)
class Window:
    """Part of a text that is encoded as a text of its own."""

    tokens: Ids
    """Indices of the window's tokens in the text, special tokens included."""
    kept: slice
    """Tokens of the text that take their vectors from the window."""
    first: int
    """Index in the window of the first of these tokens."""


def windows_of(text: Text, limit: int, name: str) -> list[Window]:
    """Return the windows of a text, in order; a single window for a text within the limit."""
    count = len(text.input_ids)
    if count <= limit:
        return [Window(np.arange(count), slice(0, count), 0)]
    own = np.flatnonzero(np.frombuffer(bytes(text.special_tokens_mask), np.uint8) == 0)
    head, end = int(own[0]), int(own[-1]) + 1
    size, length = limit - head - (count - end), end - head
    if size < OVERLAP:
        raise InputTooLong(
            f"{name}: special tokens and the prompt leave {size} of {limit} tokens of a window; at "
            f"least {OVERLAP} are needed: use a shorter prompt"
        )
    number = 1 + math.ceil((length - size) / (size - size // OVERLAP))
    starts = np.linspace(0, length - size, number).round().astype(np.int64) + head
    # Farther from the right edge of window i than from the left edge of window i + 1, up to here
    borders = [0, *((starts[:-1] + starts[1:] + size - 1) // 2 + 1).tolist(), count]
    around = np.arange(head), np.arange(end, count)
    windows = []
    for start, first, last in zip(starts.tolist(), borders, borders[1:], strict=False):
        tokens = np.concatenate([around[0], np.arange(start, start + size), around[1]])
        kept_from = first if first == 0 else head + first - start
        windows.append(Window(tokens, slice(first, last), kept_from))
    return windows


def window_tasks(
    texts: Sequence[Text], windows: Sequence[Sequence[Window]], plan: Plan, hidden_size: int
) -> tuple[list[Floats], list[TextTask], list[Keep]]:
    """Return the states of each text, and a task of each window with what stores its output."""
    number = len(plan.states)
    states = [np.empty((number, text.size, hidden_size), np.float32) for text in texts]
    tasks, keep = list[TextTask](), list[Keep]()
    for text, of_text, own in zip(texts, windows, states, strict=True):
        for window in of_text:
            ids, segments = text.input_ids[window.tokens], text.segment_ids[window.tokens]
            tasks.append(TextTask(ids, segments, plan.states, ablated=plan.options.ablated))
            keep.append(partial(_keep, window, own))
    return states, tasks, keep


def _keep(window: Window, states: Floats, output: Output) -> None:
    """Copy the vectors that a text takes from a window into its states `[states, S, H]`."""
    kept, first = window.kept, window.first
    for state, hidden in zip(states, output.hidden, strict=True):
        state[kept] = hidden[first : first + kept.stop - kept.start]


async def encode_windows(prepared: PreparedTexts, plan: Plan, hidden_size: int) -> list[TextArrays]:
    """Return each text's arrays with raw pooled vectors, from the token vectors of its windows."""
    texts, limits = prepared.texts, itertools.repeat(prepared.window_tokens)
    names = [f"inputs[{index}]" for index in range(len(texts))]
    windows = await asyncio.to_thread(lambda: [*map(windows_of, texts, limits, names)])
    _check(windows, plan)
    if reservation := prepared.caller.reservation:
        size = sum(text.size for text in texts)
        reservation.grow(4 * len(plan.states) * size * hidden_size)
    for text, of_text in zip(texts, windows, strict=True):
        text.windows = len(of_text)
    states, tasks, keep = window_tasks(texts, windows, plan, hidden_size)
    prepared.timings.tokens = sum(task.tokens for task in tasks)
    await prepared.submit("encode", tasks, keep)

    def arrays() -> list[TextArrays]:
        pairs = zip(texts, states, strict=True)
        return [plan.raw(text, Output([*own])) for text, own in pairs]

    return await asyncio.to_thread(arrays)


def _check(windows: Sequence[Sequence[Window]], plan: Plan) -> None:
    """Raise if a pooled vector of a text cannot be computed in several windows."""
    if "pooled" not in plan.options.outputs or not SINGLE_TOKENS & {*modes_of(plan.mode)}:
        return
    for index, of_text in enumerate(windows):
        if len(of_text) > 1:
            raise Unprocessable(
                f"inputs[{index}] takes {len(of_text)} windows: the pooling {plan.mode!r} takes "
                'a token that knows one window only; set `pooling` to "mean" or "max", or ask for '
                "token vectors or spans"
            )
