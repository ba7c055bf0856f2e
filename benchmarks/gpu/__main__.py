"""GPU lab: one command that measures the product's graphs on one GPU, the most telling cells first.

It imports `model`, PyTorch and transformers; only the cell `http` needs the service.
docs/benchmarks-gpu.md explains its options, cells and figures.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime
import torch
import transformers
from torch.nn import functional as F  # noqa: N812

from benchmarks.gpu import ways
from benchmarks.gpu.lab import Lab, Unavailable, Way, Work
from benchmarks.gpu.ways import PATCH, Model
from model.images.processing import patch_rows
from model.numerics.batch import pack
from model.runtimes.capabilities import capability
from model.runtimes.contract import Heads

TOKENS, TINY_TOKENS = 65_536, 600
PINNED = "to the host, pinned"
SERVICE = ("fastapi", "uvicorn", "pydantic_settings", "orjson", "prometheus_client", "uvloop")
LIST_TEXTS, CONNECTIONS = 256, 64
"""Texts of a request to the service, and connections in closed loop."""
Cell = Callable[[], None]


def mixed_lengths(tokens: int) -> list[int]:
    """Return lengths as in a corpus of documentation, the longest first: median 30, mean 42."""
    draws = np.random.default_rng(0).lognormal(np.log(30), 0.8, tokens).clip(3, 244).astype(int)
    return sorted(draws[: int(np.searchsorted(draws.cumsum(), tokens))].tolist(), reverse=True)


def limits(lab: Lab) -> None:
    """Measure products in fp16, and copies to the host and within the device."""
    if lab.cpu:
        ways.needs_gpu()
    n, size = 8192, 2**28
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.float16) for _ in range(2))
    device, other = (torch.ones(size, dtype=torch.uint8, device="cuda") for _ in range(2))
    pinned = torch.ones(size, dtype=torch.uint8, pin_memory=True)
    pageable = torch.ones(size, dtype=torch.uint8)
    calls: dict[str, Way] = {
        "product": lambda: a @ b,
        PINNED: lambda: pinned.copy_(device, non_blocking=True),
        "to the host, pageable": lambda: pageable.copy_(device),
        "within the device": lambda: other.copy_(device),
    }
    counts = dict.fromkeys(calls, size) | {"product": 2 * n**3, "within the device": 2 * size}
    lab.limits |= {name: 1e3 * counts[name] / ms for name, ms in lab.median_ms(calls).items()}
    lab.note(unit="FLOP/s and bytes/s", **lab.limits)


def texts(lab: Lab, model: Model, lengths: list[int]) -> None:
    """Compare the product and its rivals on texts of these lengths, in one batch."""
    generator = np.random.default_rng(1)
    ids = [generator.integers(5, 500, length) for length in lengths]
    grid = sum((end - first) * lengths[first] for first, end in ways.similar(lengths))
    with lab.on_stream():
        expected = ways.padded(partial(ways.mean_of, model.exact), model, ids)().cpu()
    lab.note(tokens=sum(lengths), texts=len(ids), padding=grid / sum(lengths))
    predicted = ways.PREDICTED_US.get(lab.cell, {})
    work = Work(model.shape, lengths, expected, ways.RIVAL, predicted)
    makes = ways.product_ways(model, ways.batch_of(ids)) | ways.rivals(model, ids)
    lab.compare(makes, work, kernels=len(ids) > 8)


def pictures(lab: Lab, model: Model, count: int) -> None:
    """Compare the product and transformers on random pixels, in one batch."""
    edge, rival = model.exact.config.image_size, "transformers"
    values = torch.randn(count, 3, edge, edge, generator=torch.Generator().manual_seed(0))
    first = np.zeros((1, 3 * PATCH**2), np.float32)
    pixels = [np.concatenate([first, patch_rows(one, PATCH)]) for one in values.numpy()]
    ids = np.eye(1, len(pixels[0]), dtype=np.int64)[0]  # 1 for [CLS], 0 for a patch
    batch = pack([(ids, 0 * ids)] * count, pixels=pixels)

    def computed_by(module: torch.nn.Module) -> Way:
        given = values.to(model.device, next(module.parameters()).dtype)

        @torch.inference_mode()
        def run() -> torch.Tensor:
            return F.normalize(module(given).last_hidden_state[:, 0].float(), dim=1)

        return run

    with lab.on_stream():
        expected = computed_by(model.exact)().cpu()
    work = Work(model.shape, [len(ids)] * count, expected, rival)
    makes = ways.product_ways(model, batch) | {rival: lambda: computed_by(model.half)}
    lab.compare(makes, work, kernels=True)


def maps(lab: Lab, model: Model, length: int) -> None:
    """Time all maps of a text, one head's maps, and the text's vector, until on the host."""
    runtime, heads = model.runtime, range(model.shape.heads)
    layers, of_heads = range(model.shape.layers), capability(runtime, Heads)
    batch = ways.batch_of([np.arange(5, 5 + length)])

    def asked(layers: range, heads: range) -> list[np.ndarray]:
        states, _ = runtime.encode(batch, [(0, layer) for layer in layers], [])
        pairs = zip(states, layers, strict=True)
        return [of_heads.attention(state, state, layer, heads) for state, layer in pairs]

    calls: dict[str, Way] = {
        "all_maps_ms": lambda: asked(layers, heads),
        "one_head_ms": lambda: asked(layers[-1:], heads[:1]),
        "vector_ms": ways.served(model, batch, runtime),
    }
    ms = lab.median_ms(calls)
    rate = 1e3 * sum(one.nbytes for one in asked(layers, heads)) / ms["all_maps_ms"]
    lab.note(map_bytes_a_second=rate, share_of_pinned=rate / lab.limits.get(PINNED, math.nan), **ms)


def memory(lab: Lab, model: Model, batches: int, most_tokens: int) -> None:
    """Run mixed batches; the peak of device memory must not grow after the first tenth."""
    generator, peaks_bytes = random.Random(0), [0, 0]
    longest = min(most_tokens, model.artifact.manifest.config.max_position_embeddings)
    model.runtime.warm_up(most_tokens, longest)
    for number in range(batches):
        lengths = [max(2, int(longest * generator.random() ** 2)) for _ in range(64)]
        most = int(np.searchsorted(np.cumsum(lengths), most_tokens))
        some = [np.full(n, 7) for n in lengths[: generator.randint(1, most)]]
        ways.served(model, ways.batch_of(some), model.runtime)()
        if not lab.cpu:
            free, total = torch.cuda.mem_get_info()
            peak = int(number >= batches // 10)
            peaks_bytes[peak] = max(peaks_bytes[peak], total - free)
        if lab.is_late():
            break
    if lab.cpu:
        ways.needs_gpu()
    first, later = peaks_bytes
    lab.note(batches=number + 1, held_bytes=first, grown_bytes=max(0, later - first))


def http(lab: Lab, model: Model, workers: int, requests: int) -> None:
    """Load the service with lists of texts in closed loop; replies in safetensors."""
    if missing := [name for name in SERVICE if find_spec(name) is None]:
        raise Unavailable(f"not installed: {', '.join(missing)}")
    from benchmarks.harness.servers import headscope, running

    generator = np.random.default_rng(0)
    words = [generator.integers(5, 500, length) for length in mixed_lengths(TOKENS)]
    inputs = [" ".join(f"w{word}" for word in some) for some in words]
    lists = [generator.choice(inputs, LIST_TEXTS).tolist() for _ in range(requests)]
    asked = [("/encode", {"inputs": some, "outputs": ["pooled"]}) for some in lists]
    flags = ["--device", model.device, "--workers", str(workers), "--max-queue-tokens", str(2**23)]
    with running(headscope("lab", "fp16", model.artifact.folder, flags), "w7") as server:
        accept = {"accept": "application/vnd.safetensors"}
        result = server.load(asked, min(CONNECTIONS, requests), headers=accept)
    rate = LIST_TEXTS * requests / (result.ended - result.started)
    lab.note(workers=workers, texts_a_second=rate, p50_ms=float(np.median(result.latencies_ms)))


def plan(lab: Lab, folder: Path) -> dict[str, Cell]:
    """Return the cells by name, in their order."""
    small, base, vit = (Model(lab, name, folder) for name in ways.SHAPES)
    tokens = TINY_TOKENS if lab.cpu else TOKENS

    def equal(model: Model, length: int, count: int) -> Cell:
        return partial(texts, lab, model, [length // 8 if lab.cpu else length] * count)

    cells: dict[str, Cell] = {"limits": partial(limits, lab)}
    cells["MiniLM, mixed"] = partial(texts, lab, small, mixed_lengths(tokens))
    alike = ((base, 128), (small, 128), (base, 512))
    cells |= {f"{of.name}, {n}": equal(of, n, tokens // n + lab.cpu) for of, n in alike}
    cells["maps"] = partial(maps, lab, small, 32 if lab.cpu else 512)
    few = itertools.product((small, base), (1, 8))
    cells |= {f"{of.name}, {count} × 128": equal(of, 128, count) for of, count in few}
    counts = (1, 2) if lab.cpu else (1, 32, 128)
    cells |= {f"pictures, {count}": partial(pictures, lab, vit, count) for count in counts}
    cells["memory"] = partial(memory, lab, small, *((40, 512) if lab.cpu else (10_000, 16_384)))
    cells["http"] = partial(http, lab, small, *((1, 4) if lab.cpu else (4, 1_000)))
    return cells


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cells; return 1 if a cell failed or a way is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=470)
    parser.add_argument("--keep", type=Path, help="folder that keeps exports for the next run")
    parser.add_argument("--only", nargs="+", default=[""], help="first letters of cells")
    parser.add_argument("--http", action="store_true", help="measure the service as well")
    parser.add_argument("--cpu", action="store_true", help="dry run in tiny sizes")
    options = parser.parse_args(arguments)
    transformers.utils.logging.disable_progress_bar()
    if not options.cpu:
        onnxruntime.preload_dlls()
    lab = Lab(options.json, options.seconds, cpu=options.cpu)
    device = "a dry run on a CPU" if options.cpu else torch.cuda.get_device_name()
    versions = {one.__name__: one.__version__ for one in (onnxruntime, torch, transformers)}
    lab.note(device=device, cuda=torch.version.cuda, **versions)
    with tempfile.TemporaryDirectory() as scratch:
        for name, cell in plan(lab, options.keep or Path(scratch)).items():
            if name.startswith(tuple(options.only)) and (name != "http" or options.http):
                lab.run(name, cell)
    bad = [one for one in lab.figures if "failed" in one or one.get("verdict") == "WRONG"]
    print(f"\n{len(bad)} figures failed or are wrong")
    return min(1, len(bad))


if __name__ == "__main__":
    sys.exit(main())
