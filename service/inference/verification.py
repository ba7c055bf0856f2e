"""Comparison of PyTorch's and the ONNX graphs' tensors for the texts of a request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from model.artifact.manifest import Manifest, recorded_tolerances
from model.artifact.vectors import TextVectors
from model.config.decoder import DecoderConfig
from model.config.encoder import EncoderConfig
from model.numerics.comparison import Comparison, Key, keyed, task_key
from service.engines.contract import Floats, Ids, MapsTask, TextTask
from service.engines.whole_targets import target_maps, target_tensors, whole_target
from service.errors import EngineTimeout, Overloaded
from service.inference.engine_pool import EnginePool
from service.inference.tokenization.text import Text
from service.scheduler.call import Call, Demand, retry_after
from service.scheduler.outputs import requested
from service.scheduler.scheduler import Scheduler
from service.system.budget import Reservation

COPIES = 3
"""Copies of a text's states and maps: of each engine, and in PyTorch's process."""


async def compare_engines(
    engines: EnginePool,
    texts: Sequence[Text],
    manifest: Manifest,
    vectors: TextVectors,
    caller: Call,
) -> Comparison:
    """Compare the hidden states, maps, pooled vectors and task head's outputs of both engines.

    Args:
        engines: engines of the model.
        texts: tokenised texts of the request.
        manifest: manifest of the artifact, whose precision determines the tolerances.
        vectors: vector pipeline of the artifact.
        caller: client and deadline of the request.

    """
    try:
        async with asyncio.timeout(caller.finish_by - time.monotonic()):
            return await _compare(engines, texts, manifest, vectors, caller)
    except TimeoutError:
        raise EngineTimeout("the deadline came before all of it was verified") from None


def reserve(reservation: Reservation | None, manifest: Manifest, tokens: int) -> None:
    """Hold the memory that the comparison of a text takes, before the text is tokenised.

    Args:
        reservation: of the request; None where nothing is bounded.
        manifest: of the artifact.
        tokens: the most tokens of a text.

    Raises:
        RequestTooLarge: the request alone takes more than all may.
        Overloaded: the other requests leave too little.

    """
    if reservation is None:
        return
    size = _state_bytes(manifest.config, tokens)
    if manifest.decoder is not None:
        size += 2 * _state_bytes(manifest.decoder.layers, tokens)  # its own, and cross maps
    reservation.grow(COPIES * size)


async def check_time(engines: EnginePool, manifest: Manifest, demand: Demand, by: float) -> None:
    """Refuse a request that cannot be verified by `time.monotonic()` of `by`, before tokenisation.

    Both engines use all cores, so their seconds add up. They are those of full batches: texts are
    compared one after another, which takes no less.
    """
    seconds, left = 0.0, by - time.monotonic()
    for name in ("onnx", "torch"):
        scheduler = await engines.get(name)
        map_tokens = demand.tokens * manifest.config.num_hidden_layers
        seconds += scheduler.seconds_alone("attention", demand.tokens, map_tokens)
        if seconds > left:
            raise Overloaded(
                f"to verify it takes {seconds:.1f} s or more, and {left:.1f} s are left of its "
                "time: send fewer or shorter texts",
                retry_after_seconds=retry_after(seconds - left),
                reason="queue_deadline",
            )


def _state_bytes(config: EncoderConfig, tokens: int) -> int:
    """Return the bytes of all hidden states and all maps of a text."""
    layers = config.num_hidden_layers
    maps = layers * config.num_attention_heads * tokens**2
    return 4 * (maps + (layers + 1) * config.hidden_size * tokens)


async def _compare(
    engines: EnginePool,
    texts: Sequence[Text],
    manifest: Manifest,
    vectors: TextVectors,
    caller: Call,
) -> Comparison:
    reference, candidate = await engines.get("torch"), await engines.get("onnx")
    comparison = Comparison()
    tolerances = recorded_tolerances(manifest)
    for text in texts:
        expected, computed = await asyncio.gather(
            _everything(reference, text, manifest, vectors, caller),
            _everything(candidate, text, manifest, vectors, caller),
        )
        await asyncio.to_thread(comparison.add, expected, computed, tolerances)
    return comparison


async def _everything(
    scheduler: Scheduler,
    text: Text,
    manifest: Manifest,
    vectors: TextVectors,
    caller: Call,
) -> Mapping[Key, Floats]:
    layers = range(manifest.config.num_hidden_layers)
    heads = tuple(range(manifest.config.num_attention_heads))
    head = manifest.task
    shape = head.shape(len(text.input_ids)) if head else ()
    decoder = manifest.decoder
    target = whole_target(_labels(text, decoder), decoder) if decoder else None
    task = TextTask(
        text.input_ids,
        text.segment_ids,
        (*layers, len(layers)),
        scores=shape,
        target=target,
        pixels=text.pixels,
    )
    (result,) = await scheduler.submit("attention", [task], caller)
    hidden = result.value.hidden
    tasks = [
        MapsTask(hidden[layer], hidden[layer], layer, heads, segment=text.segment)
        for layer in layers
    ]
    results = await scheduler.submit("attention", tasks, caller, resumed=True)
    maps = [requested(item.value.maps) for item in results]
    scores = {task_key(head): requested(result.value.scores)} if head else {}
    tensors = keyed(hidden, maps, vectors.unit) | scores
    if decoder is not None:
        tasks = target_maps(result.value, decoder)
        results = await scheduler.submit("attention", tasks, caller, resumed=True)
        tensors |= target_tensors(result.value, [item.value for item in results]).keyed()
    return tensors


def _labels(text: Text, decoder: DecoderConfig) -> Ids:
    """Return the text as its own target, within the decoder's vocabulary and length."""
    config = decoder.layers
    return text.input_ids[: config.max_position_embeddings] % config.vocab_size
