"""All outputs that an engine computes of a text and its target, for the comparison of engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from model.artifact.manifest import Manifest
from model.numerics.comparison import Key, TargetTensors, keyed, task_key
from service.engines.contract import (
    Floats,
    Ids,
    MapsTask,
    Output,
    Target,
    TargetOutput,
    TextTask,
)


def whole_task(
    manifest: Manifest, input_ids: Ids, segment_ids: Ids, pixels: Floats | None, labels: Ids | None
) -> TextTask:
    """Return the forward pass of a text that requests all states and scores."""
    head, decoder, target = manifest.task, manifest.decoder, None
    if decoder and labels is not None:
        own = tuple(range(decoder.layers.num_hidden_layers))
        target = Target(labels, (*own, len(own)), own, logprobs=True)
    layers = tuple(range(manifest.config.num_hidden_layers + 1))
    scores = head.shape(len(input_ids)) if head else ()
    return TextTask(input_ids, segment_ids, layers, scores=scores, target=target, pixels=pixels)


def whole_maps(output: Output, manifest: Manifest, segment: int) -> list[MapsTask]:
    """Return tasks for all maps of each layer: the encoder's, the decoder's, cross-attention's.

    The output is of a `whole_task`, whose first token has the token type `segment`.
    """
    *states, encoded = output.hidden
    heads = tuple(range(manifest.config.num_attention_heads))
    tasks = [MapsTask(own, own, n, heads, segment=segment) for n, own in enumerate(states)]
    if (target := output.target) and (decoder := manifest.decoder):
        heads = tuple(range(decoder.layers.num_attention_heads))
        *states, _ = target.hidden
        tasks += [MapsTask(own, own, n, heads, "decoder") for n, own in enumerate(states)]
        tasks += [MapsTask(own, encoded, n, heads, "cross") for n, own in enumerate(target.cross)]
    return tasks


def whole_tensors(
    output: Output, maps: Sequence[Output], manifest: Manifest, unit: Callable[[Floats], Floats]
) -> dict[Key, Floats]:
    """Return a text's tensors by key, with the outputs of the tasks of `whole_maps`.

    `unit` maps the last hidden state to the text's unit vector.
    """
    weights = [part.maps for part in maps if part.maps is not None]
    layers = manifest.config.num_hidden_layers
    tensors = keyed(output.hidden, weights[:layers], unit)
    if manifest.task and output.scores is not None:
        tensors[task_key(manifest.task)] = output.scores
    if output.target:
        tensors |= target_tensors(output.target, weights[layers:]).keyed()
    return tensors


def target_tensors(target: TargetOutput, maps: Sequence[Floats]) -> TargetTensors:
    """Return a target's tensors from its outputs, the decoder's maps and the cross-attention's."""
    layers = len(target.cross)
    if target.logprobs is None or len(maps) != 2 * layers:
        raise ValueError("the target was not computed whole")
    hidden, queries = np.stack(target.hidden), np.stack(target.cross)
    own, cross = np.stack(maps[:layers]), np.stack(maps[layers:])
    return TargetTensors(hidden, queries, own, cross, target.logprobs)
