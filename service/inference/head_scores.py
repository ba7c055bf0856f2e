"""Queries, keys, scores and weights of one attention head in each text.

Notation: S tokens of a text, Q selected queries and K selected keys among them; p size of the head,
H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass

from model.runtimes.capabilities import HeadScoring
from service.engines.contract import Floats, MapsTask, Output, TextTask
from service.errors import ReplyTooLarge
from service.inference.attention.map_parts import MapPart, taken
from service.inference.attention.selection import AttentionSelection
from service.inference.attention.stream import LAYER_BYTES
from service.inference.core import Inference
from service.inference.encoding import PreparedTexts
from service.scheduler.outputs import requested


@dataclass(frozen=True)
class ComparedText:
    """Queries, keys, scores and weights of the head in one text."""

    queries: Floats
    """Query vectors `[Q, p]`, as they enter the score."""
    keys: Floats
    """Key vectors `[K, p]`, as they enter the score."""
    scores: Floats
    """Scores `[Q, K]`, before normalisation."""
    weights: Floats
    """Weights `[Q, K]`; a row over all S keys sums to 1."""


def require_scores(inference: Inference) -> None:
    """Reject a model without scores.

    Raises:
        NotExported: the model is a static embedding.
        NotVerified: heads failed the artifact's verification.

    """
    inference.require_use("heads")
    inference.require(HeadScoring)


def check_lengths(prepared: PreparedTexts) -> None:
    """Reject texts whose scores and weights take too much memory.

    Raises:
        ReplyTooLarge: a text is too long; the message has the bytes.

    """
    for index, text in enumerate(prepared.texts):
        size = 2 * 4 * len(text.input_ids) ** 2
        if size > LAYER_BYTES:
            raise ReplyTooLarge(
                f"inputs[{index}] has {len(text.input_ids)} tokens: the scores and weights of a "
                f"head take {size} bytes, the limit is {LAYER_BYTES}; ask for a shorter text"
            )


def working_bytes(inference: Inference, prepared: PreparedTexts) -> int:
    """Return the maximum bytes beside the reply: all states, and the longest text's two maps."""
    lengths = [len(text.input_ids) for text in prepared.texts]
    return 4 * (inference.config.hidden_size * sum(lengths) + 2 * max(lengths) ** 2)


async def compare(prepared: PreparedTexts, selection: AttentionSelection) -> list[ComparedText]:
    """Compute the arrays of the head: a forward pass of all texts, then one text at a time.

    Args:
        prepared: the texts.
        selection: one head of the encoder, and a part of its map without pooling. The scores of an
            ablated head are still computed.

    Raises:
        Overloaded: the queue has no room, or the deadline cannot be met.
        EngineTimeout: the deadline passed.
        ServiceError: the engine failed.

    """
    (layers, heads), caller = selection.maps["encoder"], prepared.caller
    ablated = selection.ablated.get("encoder", ())
    tasks = [
        TextTask(
            text.input_ids,
            text.segment_ids,
            hidden_layers=layers,
            ablated=ablated,
            pixels=text.pixels,
        )
        for text in prepared.texts
    ]
    done = await prepared.scheduler.submit("attention", tasks, caller)
    prepared.timings.add(done)
    compared: list[ComparedText] = []
    for text, result in zip(prepared.texts, done, strict=True):
        (states,) = result.value.hidden
        task = MapsTask(states, states, layers[0], heads, scores=True, segment=text.segment)
        results = await prepared.scheduler.submit(
            "attention", [task], caller, [_Reduction(selection.part)], resumed=True
        )
        prepared.timings.add(results)
        compared.append(results[0].value)
    return compared


@dataclass(frozen=True, slots=True)
class _Reduction:
    """Function that takes the selected tokens, in the thread that computed the maps."""

    part: MapPart

    def __call__(self, output: Output) -> ComparedText:
        compared, maps = requested(output.head_scores), requested(output.maps)
        return ComparedText(
            taken(compared.queries[0], self.part.queries, -2),
            taken(compared.keys[0], self.part.keys, -2),
            self.part.of(compared.scores[0]),
            self.part.of(maps[0]),
        )
