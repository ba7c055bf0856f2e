"""Comparison of PyTorch's and the ONNX graphs' tensors for the texts of a request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from model.artifact.manifest import Manifest, recorded_tolerances
from model.config.encoder import EncoderConfig
from model.numerics.comparison import Comparison, Key
from service.engines.contract import Floats
from service.engines.whole_texts import whole_maps, whole_task, whole_tensors
from service.errors import EngineTimeout, Overloaded
from service.inference.core import Inference
from service.inference.engine_pool import EnginePool
from service.inference.tokenization.inputs import Input
from service.inference.tokenization.text import Text
from service.inference.tokenization.tokenizer import Options
from service.scheduler.call import Call, Demand, retry_after
from service.scheduler.scheduler import Scheduler

COPIES = 3
"""Copies of a text's states and maps: of each engine, and in PyTorch's process."""


async def verify(
    inference: Inference, inputs: Sequence[Input], options: Options, caller: Call
) -> Comparison:
    """Compare hidden states, maps, pooled vectors and a task head's outputs of PyTorch and ONNX.

    Texts are compared one after another.
    """
    manifest, reader = inference.manifest, inference.reader
    demand = reader.demand(inputs, options, caller)
    await check_time(inference.engines, manifest, demand, caller.finish_by)
    if caller.reservation:
        caller.reservation.grow(_tensor_bytes(manifest, reader.most_tokens(inputs, options)))
    texts = await reader.tokenize(inputs, options, caller)
    comparison, tolerances = Comparison(), recorded_tolerances(manifest)
    try:
        async with asyncio.timeout(caller.finish_by - time.monotonic()):
            engines = [await inference.engines.get(name) for name in ("torch", "onnx")]
            for text in texts:
                expected, computed = await asyncio.gather(
                    *(_tensors(inference, engine, text, caller) for engine in engines)
                )
                await asyncio.to_thread(comparison.add, expected, computed, tolerances)
    except TimeoutError:
        raise EngineTimeout("the deadline came before all of it was verified") from None
    return comparison


async def check_time(engines: EnginePool, manifest: Manifest, demand: Demand, by: float) -> None:
    """Refuse a request that cannot be verified by `time.monotonic()` of `by`, before tokenisation.

    Both engines use all cores, so their seconds add up. The seconds are for full batches: texts are
    compared one after another, which takes no less.
    """
    seconds, left = 0.0, by - time.monotonic()
    for name in ("onnx", "torch"):
        scheduler = await engines.get(name)
        map_tokens = demand.tokens * manifest.config.num_hidden_layers
        seconds += scheduler.seconds_alone(demand.tokens, map_tokens)
        if seconds > left:
            raise Overloaded(
                f"to verify it takes {seconds:.1f} s or more, and {left:.1f} s are left of its "
                "time: send fewer or shorter texts",
                retry_after_seconds=retry_after(seconds - left),
                reason="queue_deadline",
            )


def _tensor_bytes(manifest: Manifest, tokens: int) -> int:
    """Return the bytes of all compared states and maps of a text of some tokens."""

    def size(config: EncoderConfig) -> int:
        maps = config.num_hidden_layers * config.num_attention_heads * tokens**2
        return 4 * (maps + (config.num_hidden_layers + 1) * config.hidden_size * tokens)

    decoder = manifest.decoder  # which has cross-attention maps, too
    return COPIES * (size(manifest.config) + (2 * size(decoder.layers) if decoder else 0))


async def _tensors(
    inference: Inference, scheduler: Scheduler, text: Text, caller: Call
) -> Mapping[Key, Floats]:
    """Return all tensors of a text, which is its own target for a decoder."""
    manifest, labels = inference.manifest, None
    if decoder := inference.decoder:
        most, words = decoder.layers.max_position_embeddings, decoder.layers.vocab_size
        labels = text.input_ids[:most] % words
    task = whole_task(manifest, text.input_ids, text.segment_ids, text.pixels, labels)
    (result,) = await scheduler.submit("attention", [task], caller)
    tasks = whole_maps(result.value, manifest, text.segment)
    maps = await scheduler.submit("attention", tasks, caller, resumed=True)
    unit = inference.vectors.unit
    return whole_tensors(result.value, [item.value for item in maps], manifest, unit)
