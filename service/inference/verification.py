"""The engines held against each other on a caller's texts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import numpy as np

from model.artifact.compare import TOLERANCES, Comparison, Key, keyed
from model.artifact.manifest import Manifest
from service.engines.contract import Floats, MapsTask, TextTask
from service.inference.tokenizer import TokenizedText
from service.scheduler.batching import Batcher


async def compare_engines(
    reference: Batcher, candidate: Batcher, texts: Sequence[TokenizedText], manifest: Manifest
) -> Comparison:
    """Every hidden state, map and pooled vector of each text, from both engines.

    Raises:
        ServiceError: an engine failed.

    """
    comparison = Comparison()
    tolerances = TOLERANCES[manifest.precision]
    for text in texts:
        expected, found = await asyncio.gather(
            _everything(reference, text, manifest), _everything(candidate, text, manifest)
        )
        await asyncio.to_thread(comparison.add, expected, found, tolerances)
    return comparison


async def _everything(
    batcher: Batcher, text: TokenizedText, manifest: Manifest
) -> Mapping[Key, Floats]:
    layers = range(manifest.config.num_hidden_layers)
    heads = tuple(range(manifest.config.num_attention_heads))
    task = TextTask(text.input_ids, text.segment_ids, (*layers, len(layers)))
    (done,) = await batcher.submit("attention", [task])
    hidden = done.output.hidden
    tasks = [MapsTask(hidden[layer], hidden[layer], layer, heads) for layer in layers]
    maps = [item.output.maps for item in await batcher.resume("attention", tasks)]
    return keyed(hidden, np.stack(maps), manifest.sentence.pooling)
