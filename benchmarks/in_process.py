"""Tokens a second in process, as a share of the ceiling and beside sentence-transformers.

Each way first tries several sizes of batches on the whole workload and keeps the fastest; then all
ways run in turn. Headscope runs the fp16 artifact; sentence-transformers runs float16 with fused
attention, once as it is and once compiled. Both are measured on tokenised texts and on raw texts.
"""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.harness.bench import Bench, Model
from benchmarks.harness.cost import flop
from benchmarks.harness.encoding import Encoding, Segments
from benchmarks.harness.figures import Figure, Goal, not_measured
from benchmarks.harness.texts import Workload, mixed, of_length
from benchmarks.harness.timing import Call, in_turn, median_ratio, wall_seconds
from benchmarks.harness.vectors import check_vectors
from benchmarks.peers.sentence_transformers import HALF, SentenceTransformersPeer
from model.numerics.batch import pack

OURS, SDPA, COMPILED = "Headscope", "sentence-transformers", "sentence-transformers compiled"
BASE_SHARE, MIXED_RATIO = Goal("≥", 0.45), Goal("≥", 1.5)
GOAL_LENGTHS = (128, 512)
CHECKED, LEAST_COSINE = 8, 0.999
Setting = tuple[int, ...]


@dataclass(frozen=True)
class Found:
    """Results of every way on one workload: seconds by round, and the fastest batches."""

    tokenised: Mapping[str, list[float]]
    """Seconds for tokenised texts, by way and round."""
    texts: Mapping[str, list[float]]
    """Seconds for raw texts, tokenising included, by way and round."""
    settings: Mapping[str, Setting]
    """Tokens of a batch and threads for Headscope; texts of a batch for sentence-transformers."""
    least_cosine: float


def fastest_peer(seconds: Mapping[str, list[float]]) -> tuple[str, float]:
    """Return the peer with the smallest median time, and Headscope's speed as a multiple of its."""
    peers = [name for name in seconds if name != OURS]
    fastest = min(peers, key=lambda name: statistics.median(seconds[name]))
    return fastest, median_ratio(seconds[fastest], seconds[OURS])


def measure(bench: Bench) -> Iterator[Figure]:
    for model in (bench.model, bench.base):
        yield from measure_model(bench, model)
        if bench.cuda:
            torch.cuda.empty_cache()


def measure_model(bench: Bench, model: Model) -> Iterator[Figure]:
    ceiling, encoding = bench.products["fp16"], bench.encoding(model, "fp16")
    peers = {SDPA: peer(bench, model, compiled=False)}
    try:
        if bench.sizes.compiled:
            peers[COMPILED] = compiled_peer(bench, model)
    except Exception as error:  # the compiler's errors share no base class
        reason = " ".join(str(error).split())[:100] or type(error).__name__
        yield not_measured(f"{model.name}, {COMPILED}", reason)
    for length in bench.sizes.lengths:
        name, positions = f"{model.name}, S = {length}", model.config.max_position_embeddings
        if length > positions:
            yield not_measured(name, f"the model has {positions} positions")
            continue
        workload = of_length(length, bench.sizes.pass_tokens, encoding.raw_tokenizer())
        found = run(bench, encoding, peers, workload)
        figure = share_figure(name, model, workload, found, ceiling)
        is_goal = model is bench.base and length in GOAL_LENGTHS
        yield bench.aim(figure, BASE_SHARE) if is_goal else figure
    workload = mixed_workload(bench, encoding)
    found = run(bench, encoding, peers, workload)
    figure = ratio_figure(f"{model.name}, mixed", model, workload, found, ceiling)
    yield bench.aim(figure, MIXED_RATIO) if model is bench.model else figure


def peer(bench: Bench, model: Model, *, compiled: bool) -> SentenceTransformersPeer:
    most = model.config.max_position_embeddings
    return SentenceTransformersPeer(
        model.checkpoint, bench.options.device, HALF, max_tokens=most, compiled=compiled
    )


def compiled_peer(bench: Bench, model: Model) -> SentenceTransformersPeer:
    """Return a compiled peer that has computed its first texts.

    Raises:
        RuntimeError: on a CPU, where a dry run does not wait for the compiler.

    """
    if not bench.cuda:
        raise RuntimeError("needs a GPU")
    compiled = peer(bench, model, compiled=True)
    compiled.encode_texts(["a text", "and another one"], 2)
    return compiled


def mixed_workload(bench: Bench, encoding: Encoding) -> Workload:
    most = encoding.config.max_position_embeddings
    file = bench.options.workload
    return mixed(bench.sizes.mixed_texts, encoding.raw_tokenizer(), most, file)


def run(
    bench: Bench,
    encoding: Encoding,
    peers: Mapping[str, SentenceTransformersPeer],
    workload: Workload,
) -> Found:
    """Find each way's fastest batches, then run all ways in turn."""
    sizes, texts = bench.sizes, workload.texts
    segments = encoding.tokenize(texts)
    least_cosine = min(check(encoding, peer, texts) for peer in peers.values())
    tokenised, from_texts = best_settings(bench, encoding, texts, segments)
    counts = sorted({max(1, int(tokens / workload.mean_tokens)) for tokens in sizes.batch_tokens})
    theirs = best_setting(lambda count: peers[SDPA].encode(segments, count), [(n,) for n in counts])
    of_segments: dict[str, Call] = {OURS: lambda: encoding.encode(segments, *tokenised)}
    of_texts: dict[str, Call] = {OURS: lambda: encoding.encode_texts(texts, *from_texts)}
    for name, model in peers.items():
        of_segments[name] = functools.partial(model.encode, segments, *theirs)
        of_texts[name] = functools.partial(model.encode_texts, texts, *theirs)
    return Found(
        tokenised=in_turn(of_segments, sizes.batch_rounds),
        texts=in_turn(of_texts, sizes.text_rounds),
        settings={OURS: tokenised, f"{OURS}, texts": from_texts, SDPA: theirs},
        least_cosine=least_cosine,
    )


def best_settings(
    bench: Bench, encoding: Encoding, texts: list[str], segments: list[Segments]
) -> tuple[Setting, Setting]:
    """Return tokens of a batch and threads, for tokenised texts and for raw texts."""
    sizes = bench.sizes
    tokenised = best_setting(
        functools.partial(encoding.encode, segments),
        itertools.product(sizes.batch_tokens, sizes.threads),
    )
    from_texts = best_setting(
        functools.partial(encoding.encode_texts, texts),
        [(tokenised[0], threads) for threads in sizes.threads],
    )
    return tokenised, from_texts


def best_setting(call: Callable[..., object], candidates: Iterable[Setting]) -> Setting:
    """Return the fastest setting; each runs once to warm up and once to count."""
    seconds = {}
    for candidate in candidates:
        call(*candidate)
        seconds[candidate] = wall_seconds(functools.partial(call, *candidate))
    return min(seconds, key=lambda candidate: seconds[candidate])


def check(encoding: Encoding, peer: SentenceTransformersPeer, texts: list[str]) -> float:
    """Return the smallest cosine between the peer's vectors and Headscope's.

    Raises:
        OtherVectorsError: the cosine is too small.

    """
    sample = texts[:CHECKED]
    ours = np.stack(encoding.pooled(pack(encoding.tokenize(sample))))
    theirs = peer.encode_texts(sample, CHECKED).astype(np.float32)
    return check_vectors("sentence-transformers", ours, theirs, LEAST_COSINE)


def share_figure(
    name: str, model: Model, workload: Workload, found: Found, ceiling: float
) -> Figure:
    """Return the figure of texts of one length: the share of the ceiling."""
    details = details_of(model, workload, found, ceiling)
    name_of_peer, ratio = fastest_peer(found.tokenised)
    tokenised, texts = (details[f"tokens_per_second_{of}"][OURS] for of in ("tokenised", "texts"))
    return Figure(
        name,
        details["share"],
        "of the fp16 ceiling",
        note=f"{tokenised:,.0f} tokens/s, {ratio:.2f} × {name_of_peer}; "
        f"with tokenising {texts:,.0f}",
        details=details,
    )


def ratio_figure(
    name: str, model: Model, workload: Workload, found: Found, ceiling: float
) -> Figure:
    """Return the figure of mixed lengths: the ratio to the faster peer, tokenising included."""
    details = details_of(model, workload, found, ceiling)
    name_of_peer, ratio = fastest_peer(found.texts)
    rate = len(workload.texts) / statistics.median(found.texts[OURS])
    return Figure(
        name,
        ratio,
        f"× {name_of_peer}",
        note=f"{rate:,.0f} texts/s with tokenising; tokenised already "
        f"{fastest_peer(found.tokenised)[1]:.2f} ×, {details['share']:.2g} of the ceiling",
        details={**details, "texts_per_second": rate},
    )


def details_of(model: Model, workload: Workload, found: Found, ceiling: float) -> dict[str, Any]:
    tokens, cost = sum(workload.lengths), flop(model.config, workload.lengths)

    def rates(seconds: Mapping[str, list[float]]) -> dict[str, float]:
        return {name: tokens / statistics.median(some) for name, some in seconds.items()}

    return {
        **asdict(found),
        "text_count": len(workload.texts),
        "token_count": tokens,
        "flop": cost,
        "share": cost / statistics.median(found.tokenised[OURS]) / ceiling,
        "tokens_per_second_tokenised": rates(found.tokenised),
        "tokens_per_second_texts": rates(found.texts),
    }
