"""What one head compares in a text: queries, keys, their scores, and the weights that follow.

Notation: S tokens of a text, Q of them that look and K that are looked at, as far as they are
asked for; p size of the head, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass

from model.artifact.foreign import not_in_graph
from service.engines.contract import Ablated, Floats, MapsTask, Output, TextTask
from service.errors import NotExported, ReplyTooLarge
from service.inference.attention.map_parts import MapPart, taken
from service.inference.attention.stream import LAYER_BYTES
from service.inference.core import Inference
from service.inference.encoding import PreparedTexts


@dataclass(frozen=True)
class HeadSelection:
    """A head of the encoder, and the tokens of each text that are wanted of it."""

    layer: int
    head: int
    part: MapPart
    """Not pooled."""
    ablated: Ablated = ()
    """(layer, head) of each head whose output is zeroed; its own scores are computed all the
    same."""


@dataclass(frozen=True)
class ComparedText:
    """What the head compares in one text."""

    queries: Floats
    """`[Q, p]`, as they enter the score."""
    keys: Floats
    """`[K, p]`, likewise."""
    scores: Floats
    """`[Q, K]`: what is normalised."""
    weights: Floats
    """`[Q, K]`: a row of all S keys sums to 1."""


def require_scores(inference: Inference) -> None:
    """Refuse a model without scores, before anything is done.

    Raises:
        NotExported: what is served is a foreign graph.
        NotVerified: heads failed the artifact's verification.

    """
    inference.require_use("heads")
    manifest = inference.manifest
    if manifest.foreign:
        raise NotExported(not_in_graph("what a head compares", maps=manifest.gives_maps))


def check_lengths(prepared: PreparedTexts) -> None:
    """Refuse a text whose scores and weights take too much memory.

    Raises:
        ReplyTooLarge: says how many bytes they take.

    """
    for index, text in enumerate(prepared.texts):
        size = 2 * 4 * len(text.input_ids) ** 2
        if size > LAYER_BYTES:
            raise ReplyTooLarge(
                f"inputs[{index}] has {len(text.input_ids)} tokens: the scores and weights of a "
                f"head take {size} bytes, the limit is {LAYER_BYTES}; ask for a shorter text"
            )


def working_bytes(inference: Inference, prepared: PreparedTexts) -> int:
    """Most bytes beside the reply: all hidden states, scores and weights of the longest text."""
    lengths = [len(text.input_ids) for text in prepared.texts]
    return 4 * (inference.config.hidden_size * sum(lengths) + 2 * max(lengths) ** 2)


async def compare(prepared: PreparedTexts, selection: HeadSelection) -> list[ComparedText]:
    """What the head compares in each text: one forward pass of all, then a text at a time.

    Raises:
        Overloaded: the queue has no room, or the deadline cannot be met.
        EngineTimeout: the deadline came.
        ServiceError: the engine failed.

    """
    layer, heads, caller = selection.layer, (selection.head,), prepared.caller
    tasks = [
        TextTask(
            text.input_ids, text.segment_ids, hidden_layers=(layer,), ablated=selection.ablated
        )
        for text in prepared.texts
    ]
    done = await prepared.scheduler.submit("attention", tasks, caller)
    prepared.timings.add(done)
    found: list[ComparedText] = []
    for result in done:
        (states,) = result.output.hidden
        task = MapsTask(states, states, layer, heads, scores=True)
        results = await prepared.scheduler.resume(
            "attention", [task], [_Reduction(selection.part)], caller
        )
        prepared.timings.add(results)
        found.append(results[0].output)
    return found


@dataclass(frozen=True, slots=True)
class _Reduction:
    """The function that takes the wanted tokens, in the thread that computed all."""

    part: MapPart

    def __call__(self, output: Output) -> ComparedText:
        compared, maps = output.head_scores, output.maps
        assert compared is not None  # noqa: S101 - the scheduler has checked every output
        assert maps is not None  # noqa: S101
        return ComparedText(
            taken(compared.queries[0], self.part.queries, -2),
            taken(compared.keys[0], self.part.keys, -2),
            self.part.of(compared.scores[0]),
            self.part.of(maps[0]),
        )
