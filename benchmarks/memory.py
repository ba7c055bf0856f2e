"""Growth of memory over many batches of mixed shapes: vectors, hidden states, maps."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import torch

from benchmarks.harness.bench import Bench
from benchmarks.harness.encoding import Encoding, Segments
from benchmarks.harness.figures import Figure, Goal, not_measured
from model.numerics.batch import pack
from testing.memory import MEBIBYTE, memory_bytes

NO_GROWTH = Goal("≤", 0.0)
EVERY_STATE, EVERY_MAP, EVERY_LOOK = 10, 50, 10
"""Batches a request for all hidden states, for all maps of a text, and a reading of the memory."""
MOST_TEXTS = 64


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the growth from the peak over the first batches to the peak over the others."""
    sizes = bench.sizes
    looks = [host_bytes, device_bytes] if bench.cuda else [host_bytes]
    before = [look() for look in looks]
    encoding = bench.fresh(bench.model, "fp16")  # its arena holds no memory of other steps
    seen = watch(encoding, sizes.memory_batches, sizes.memory_tokens, looks)
    held = [[now - start for now in some] for start, some in zip(before, seen, strict=True)]
    settled = sizes.settled_batches // EVERY_LOOK
    name = f"memory, growth over {sizes.memory_batches:,} batches"
    if bench.cuda:
        yield bench.aim(growth(f"device {name}", held[1], settled), NO_GROWTH)
    else:
        yield not_measured(f"device {name}", "needs a GPU")
    yield growth(f"host {name}", held[0], settled)


def growth(name: str, held: list[int], settled: int) -> Figure:
    """Return the growth from the peak of the first `settled` readings to the peak of the others."""
    first, later = max(held[:settled]), max(held[settled:])
    grown = max(0, later - first) / MEBIBYTE
    note = f"at most {first / MEBIBYTE:,.0f} MiB held in the first {settled * EVERY_LOOK:,}"
    details = {"held_bytes": held, "settled_looks": settled}
    return Figure(name, grown, "MiB", note=note, details=details)


def watch(
    encoding: Encoding, count: int, most_tokens: int, looks: list[Callable[[], int]]
) -> list[list[int]]:
    """Run the batches, and return the bytes that each look reads every `EVERY_LOOK` batches."""
    generator = random.Random(0)
    ids = np.random.default_rng(0).integers(0, encoding.config.vocab_size, most_tokens)
    layers = range(encoding.config.num_hidden_layers)
    heads = range(encoding.config.num_attention_heads)
    longest = min(encoding.config.max_position_embeddings, most_tokens)
    encoding.runtime.warm_up(most_tokens, longest)
    seen: list[list[int]] = [[] for _ in looks]
    for number in range(count):
        lengths = random_lengths(generator, longest, most_tokens)
        if number == 0:  # the largest possible batch comes first
            lengths = [longest] * (most_tokens // longest)
        texts = [text_of(ids, n) for n in lengths]
        if number % EVERY_MAP == 0:
            encoding.maps(texts[0], layers, heads)
        if number % EVERY_STATE == 0:
            encoding.runtime.hidden_states(pack(texts), [*layers, len(layers)])
        else:
            encoding.pooled(pack(texts))
        if number % EVERY_LOOK == EVERY_LOOK - 1:
            for look, held in zip(looks, seen, strict=True):
                held.append(look())
    return seen


def random_lengths(generator: random.Random, longest: int, most_tokens: int) -> list[int]:
    """Return lengths of a batch: mostly short texts, some long ones, within the budget."""
    lengths: list[int] = []
    for _ in range(generator.randint(1, MOST_TEXTS)):
        length = max(2, int(longest * generator.random() ** 2))
        if lengths and sum(lengths) + length > most_tokens:
            break
        lengths.append(length)
    return lengths


def text_of(ids: np.ndarray, length: int) -> Segments:
    return ids[:length], np.zeros(length, np.int64)


def device_bytes() -> int:
    """Return the bytes held on the device by all processes."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def host_bytes() -> int:
    """Return the bytes held by this process."""
    return memory_bytes("self", "VmRSS")
