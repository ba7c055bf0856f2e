"""All outputs that an engine computes of a target, for the comparison of engines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from model.config.decoder import DecoderConfig
from model.numerics.comparison import TargetTensors
from service.engines.contract import Ids, MapsTask, Output, Target


def whole_target(labels: Ids, decoder: DecoderConfig) -> Target:
    """Return a target that requests all outputs."""
    layers = tuple(range(decoder.layers.num_hidden_layers))
    return Target(labels, (*layers, len(layers)), layers, logprobs=True)


def target_maps(output: Output, decoder: DecoderConfig) -> list[MapsTask]:
    """Return tasks for all maps of each decoder layer, then for all cross-attention maps.

    The output is of a text with a `whole_target` and its last hidden state.
    """
    heads = tuple(range(decoder.layers.num_attention_heads))
    target, encoded = output.target, output.hidden[-1]
    if target is None:
        return []
    return [
        MapsTask(states, states, layer, heads, "decoder")
        for layer, states in enumerate(target.hidden[:-1])
    ] + [
        MapsTask(queries, encoded, layer, heads, "cross")
        for layer, queries in enumerate(target.cross)
    ]


def target_tensors(output: Output, maps: Sequence[Output]) -> TargetTensors:
    """Return the target's tensors, with the outputs of the tasks of `target_maps`.

    Raises:
        ValueError: an output is missing.

    """
    target = output.target
    weights = [part.maps for part in maps if part.maps is not None]
    if target is None or target.logprobs is None or len(weights) != 2 * len(target.cross):
        raise ValueError("the target was not computed whole")
    layers = len(target.cross)
    own, cross = np.stack(weights[:layers]), np.stack(weights[layers:])
    hidden, queries = np.stack(target.hidden), np.stack(target.cross)
    return TargetTensors(hidden, queries, own, cross, target.logprobs)
