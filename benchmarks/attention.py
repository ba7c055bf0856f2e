"""Time to compute one long text's attention maps, all or one head's, against a copy to the host."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks.harness.bench import PRECISIONS, Bench
from benchmarks.harness.device_limits import PAGEABLE, PINNED
from benchmarks.harness.figures import Figure, Goal, not_measured
from benchmarks.harness.texts import of_length
from benchmarks.harness.timing import in_turn
from model.config.precision import Precision
from model.numerics.batch import pack

MAPS_SHARE = Goal("≥", 0.5)
"""Minimum rate of all maps relative to the pinned copy: the copy then takes half of the time."""


def measure(bench: Bench) -> Iterator[Figure]:
    for precision in PRECISIONS:
        yield from measure_in(bench, precision)


def measure_in(bench: Bench, precision: Precision) -> Iterator[Figure]:
    config, encoding = bench.model.config, bench.encoding(bench.model, precision)
    s = min(bench.sizes.map_tokens, config.max_position_embeddings)
    layers, heads = range(config.num_hidden_layers), range(config.num_attention_heads)
    (text,) = encoding.tokenize(of_length(s, s, encoding.raw_tokenizer()).texts)
    ways = {
        "all": lambda: encoding.maps(text, layers, heads),
        "one": lambda: encoding.maps(text, layers[-1:], heads[:1]),
        "pooled": lambda: encoding.pooled(pack([text])),
    }
    seconds = in_turn(ways, 4 * bench.sizes.batch_rounds)
    ms = {name: 1000 * statistics.median(some) for name, some in seconds.items()}
    maps = encoding.maps(text, layers, heads)
    size, dtype = sum(one.nbytes for one in maps), maps[0].dtype.name
    rate = size / ms["all"] * 1000
    name = f"{bench.model.name} {precision}, S = {s}"
    every = f"{name}, {len(layers) * len(heads)} maps"
    note = f"{size / 1e6:.3g} MB of {dtype}, {rate / 1e9:.3g} GB/s"
    details = {"bytes": size, "dtype": dtype, "bytes_per_second": rate, "seconds": seconds}
    yield Figure(every, ms["all"], "ms", note=note, details=details)
    vector = f"its vector alone: {ms['pooled']:.3g} ms"
    yield Figure(f"{name}, one head", ms["one"], "ms", note=vector)
    if not bench.copies:
        yield not_measured(f"{every}, against the copy", "needs a GPU")
        return
    pageable = f"{rate / bench.copies[PAGEABLE]:.2g} of the pageable one"
    share = rate / bench.copies[PINNED]
    figure = Figure(f"{every}, against the copy", share, "of the pinned copy", note=pageable)
    yield bench.aim(figure, MAPS_SHARE) if precision == "fp16" else figure
