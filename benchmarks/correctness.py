"""Check every hidden state, map and vector on the device before anything is timed.

The reference is transformers' own encoder, float32, attention "eager", on the CPU, each text alone.
The candidate gets the same texts in random batches: odd texts, each length alone, mixed lengths.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from transformers import AutoModel

from benchmarks.harness.bench import Bench, Model
from benchmarks.harness.encoding import Encoding, Segments
from benchmarks.harness.figures import Figure
from model.artifact.vectors import TextVectors
from model.config.precision import Precision
from model.export.tensors import runtime_tensors
from model.export.verify import grid
from model.numerics.batch import pack
from model.numerics.comparison import Comparison, Floats, Key, Kind, Tolerance, keyed, tolerances_of

LARGEST_BATCH = 12
"""Maximum number of texts in a batch."""


class WrongError(Exception):
    """Numbers of the device that are out of tolerance or not finite."""


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield a figure for each model and precision.

    Raises:
        WrongError: a number is out of tolerance or not finite.

    """
    wrong = []
    pairs: list[tuple[Model, Precision]] = [(bench.model, one) for one in bench.sizes.precisions]
    for model, precision in [*pairs, (bench.base, "fp16")]:
        encoding = bench.encoding(model, precision)
        tolerances = tolerances_of(precision, model.config.num_hidden_layers)
        comparison, not_finite = compare(model, encoding, bench.sizes.shuffles, tolerances)
        name = f"{model.name}, {precision}"
        yield figure(name, tolerances, comparison, not_finite)
        if not comparison.passed or not_finite:
            wrong.append(name)
    if wrong:
        raise WrongError(f"out of tolerance: {', '.join(wrong)}")


def figure(
    name: str, limits: Mapping[Kind, Tolerance], comparison: Comparison, not_finite: int
) -> Figure:
    kinds: list[Kind] = list(dict.fromkeys(key.kind for key in comparison.differences))
    worst = {kind: comparison.worst(kind) for kind in kinds}
    cosine = {kind: comparison.min_cosine(kind) for kind in kinds}
    within = "; ".join(f"{kind} {worst[kind]:.1e} of {limits[kind].atol:g}" for kind in kinds)
    verdict = "right" if comparison.passed and not not_finite else "WRONG"
    return Figure(
        name,
        verdict,
        note=f"{within}; {comparison.inputs} texts, {not_finite} values not finite",
        details={
            "max_abs_diff": worst,
            "min_cosine": cosine,
            "tolerances": {kind: vars(one) for kind, one in limits.items()},
            "tensors": len(comparison.differences),
            "mismatches": comparison.mismatches[:20],
            "failed": [str(k) for k, found in comparison.differences.items() if not found.passed],
            "not_finite": not_finite,
        },
    )


def compare(
    model: Model, encoding: Encoding, shuffles: int, tolerances: Mapping[Kind, Tolerance]
) -> tuple[Comparison, int]:
    """Compare all texts of the verification's grid with the reference.

    The texts are put into random batches anew `shuffles` times. Return the comparison and the
    number of values that are not finite.
    """
    texts = [text[:2] for batch in grid(encoding.artifact) for text in batch]
    references = reference_tensors(model, texts, encoding)
    comparison, not_finite = Comparison(), 0
    generator = random.Random(0)
    for _ in range(shuffles):
        for members in random_batches(len(texts), generator):
            batch = pack([texts[i] for i in members])
            computed = runtime_tensors(encoding.runtime, batch, TextVectors.of(encoding.artifact))
            alone = encoding.pooled(pack([texts[i] for i in reversed(members)]))[::-1]
            for index, tensors, vector in zip(members, computed, alone, strict=True):
                tensors[Key("pooled")] = vector
                not_finite += sum(int((~np.isfinite(tensor)).sum()) for tensor in tensors.values())
                comparison.add(references[index], tensors, tolerances)
    return comparison, not_finite


def random_batches(count: int, generator: random.Random) -> Iterator[list[int]]:
    """Yield the indices below `count`, each once, in batches of random members and sizes."""
    order = list(range(count))
    generator.shuffle(order)
    while order:
        size = generator.randint(1, LARGEST_BATCH)
        yield order[:size]
        del order[:size]


def reference_tensors(
    model: Model, texts: Sequence[Segments], encoding: Encoding
) -> list[dict[Key, Floats]]:
    """Return the tensors that transformers computes of each text alone."""
    module = AutoModel.from_pretrained(
        model.checkpoint,
        attn_implementation="eager",
        dtype=torch.float32,
    ).eval()
    tensors = []
    for ids, segments in texts:
        with torch.inference_mode():
            output = module(
                input_ids=torch.tensor([ids]),
                token_type_ids=torch.tensor([segments]),
                output_hidden_states=True,
                output_attentions=True,
            )
        hidden = [state[0].numpy() for state in output.hidden_states]
        maps = np.stack([weights[0].numpy() for weights in output.attentions])
        products = {
            Key("values", number): value_products(layer, state[0])
            for number, (layer, state) in enumerate(
                zip(module.encoder.layer, output.hidden_states, strict=False)
            )
        }
        tensors.append(keyed(hidden, maps, TextVectors.of(encoding.artifact).unit) | products)
    return tensors


@torch.inference_mode()
def value_products(layer: torch.nn.Module, state: torch.Tensor) -> Floats:
    """Return dot products of the heads' transformed value vectors in a BERT layer, `[S, N · N]`."""
    attention = layer.attention
    heads = attention.self.num_attention_heads
    values = attention.self.value(state).unflatten(-1, (heads, -1))
    output = attention.output.dense.weight.unflatten(-1, (heads, -1))
    transformed = torch.einsum("snp,hnp->snh", values, output)
    return (transformed @ transformed.transpose(1, 2)).flatten(1).numpy()
