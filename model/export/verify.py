"""Verification of ONNX against PyTorch, over text lengths, batch sizes and unusual texts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import onnx
import torch

from model.artifact.manifest import GRAPHS, Artifact
from model.artifact.signature import GraphSignature
from model.artifact.vectors import TextVectors
from model.artifact.verification import Verdict, VerificationRecord, next_power_of_ten
from model.config.decoder import DecoderConfig
from model.config.encoder import EncoderConfig
from model.config.precision import USES, Precision, Use
from model.encoder.encoder import Encoder
from model.export.emulation import emulate
from model.export.samples import Sample, pack_samples, samples_of
from model.export.tensors import (
    candidate_tensors,
    pooled_vectors,
    reference_tensors,
    runtime_tensors,
    with_rounding,
)
from model.numerics.batch import pack
from model.numerics.comparison import (
    Comparison,
    Difference,
    Key,
    Kind,
    Tolerance,
    task_key,
    tolerances_of,
)
from model.numerics.pooling import TextPooling
from model.numerics.similarity import (
    SIMILARITY_AT_LEAST,
    Check,
    Similarity,
    bounds_line,
    shortfall,
    similarity,
)
from model.numerics.task_head import text_scores
from model.packing import PackedBatch
from model.runtimes.capabilities import TaskHead, capability
from model.runtimes.contract import Device, Floats, Resources, Runtime
from model.runtimes.onnx_device import BoundRuntime
from model.runtimes.pytorch import Modules, load_modules
from model.runtimes.registry import load_runtime
from model.tasks.head import TaskModule, scores_of_text

_NAMES: Mapping[Kind, tuple[int, str]] = {
    "hidden": (0, "hidden state {layer}"),
    "attention": (0, "attention of layer {layer}, head {head}"),
    "values": (0, "vectors added by the heads of layer {layer}"),
    "pooled": (1, "pooled vector"),
    "task": (1, "task"),
    "token_vectors": (1, "token_vectors"),
    "decoder_hidden": (2, "decoder state {layer}"),
    "decoder_attention": (2, "attention of decoder layer {layer}, head {head}"),
    "decoder_values": (2, "vectors added by the heads of decoder layer {layer}"),
    "cross_queries": (2, "query states of cross-attention in layer {layer}"),
    "cross_attention": (2, "cross-attention of layer {layer}, head {head}"),
    "cross_values": (2, "vectors added by the cross-attention heads of layer {layer}"),
    "logprobs": (3, "log-probabilities"),
}
"""Kind of tensor → part of the model and name; within a part and layer in order of computation."""
_CHECKS: Mapping[Check, str] = {
    "": "",
    "text": " of a text",
    "alone": " of a text in a batch, compared with the same text alone",
}


def first_failure(comparison: Comparison, tolerances: Mapping[Kind, Tolerance]) -> str:
    """Return one line about a failed comparison: the first failing tensor and its difference."""
    if comparison.mismatches:
        first, *others = comparison.mismatches
        return f"{first}, and {len(others)} more mismatches" if others else first
    failed = [key for key, difference in comparison.differences.items() if not difference.passed]
    key = min(failed, key=_order)
    difference, tolerance = comparison.differences[key], key.tolerance(tolerances)
    name = _NAMES[key.kind][1].format(layer=key.layer, head=key.head) + _CHECKS[key.check]
    limit = f"{tolerance.atol:g}"
    if tolerance.rtol:
        limit += f" + {tolerance.rtol:g} of the largest value"
    return (
        f"{len(failed)} of {len(comparison.differences)} tensors, first {name}: "
        f"max abs diff {difference.max_abs_diff:.1e} (at most {limit}), "
        f"min cosine {difference.min_cosine:.6f} (at least {tolerance.cosine_at_least:g})"
    )


def _order(key: Key) -> tuple[int, int, int, int]:
    """Return a sort key: a layer's input before its heads, all layers before later outputs."""
    return _NAMES[key.kind][0], key.layer, list(_NAMES).index(key.kind), key.head


def add_checks(
    references: Sequence[dict[Key, Floats]],
    candidates: Sequence[dict[Key, Floats]],
    alone: Sequence[Mapping[Key, Floats]],
    *,
    of_texts: bool = True,
) -> None:
    """Add the tensors of both checks to the tensors of a batch of texts.

    `alone` are the artifact's tensors of each text in a batch of its own. `of_texts` tells real
    texts, whose vectors have a bound of their own.
    """
    for reference, candidate, own in zip(references, candidates, alone, strict=True):
        checks = {
            replace(key, check="alone"): (tensor, candidate[key])
            for key, tensor in own.items()
            if key.kind in ("hidden", "pooled")
        }
        pooled = Key("pooled")
        if of_texts:
            checks[replace(pooled, check="text")] = reference[pooled], candidate[pooled]
        for key, (expected, actual) in checks.items():
            reference[key], candidate[key] = expected, actual


QUERY_LENGTHS = (3, 11, 1, 20)
"""Numbers of tokens of queries before expansion; at most the expanded length."""


def compare_filled_up(
    encoder: Encoder,
    head: TaskModule,
    runtime: Runtime,
    comparison: Comparison,
    tolerances: Mapping[Kind, Tolerance],
) -> None:
    """Add the token vectors of a batch of random expanded queries to a comparison.

    Nothing is compared if the head has no query expansion.
    """
    late = head.config.late
    if late is None or late.expansion is None:
        return
    generator = np.random.default_rng(2)
    lengths = [min(length, late.expansion.length) for length in QUERY_LENGTHS]
    queries = [generator.integers(0, encoder.config.vocab_size, length) for length in lengths]
    filled = [late.filled_up(ids) for ids in queries]
    unseen = [late.unseen_of(length) for length in lengths]
    batch = pack([(ids, np.zeros_like(ids)) for ids in filled], unseen)
    last = encoder.config.num_hidden_layers
    with torch.inference_mode():
        hidden = encoder(PackedBatch.of(batch)).hidden_states[last]
    kept, _ = runtime.encode(batch, [(text, last) for text in range(len(filled))], [])
    states = [np.asarray(state) for state in kept]
    token_vectors = text_scores(head.config, states, capability(runtime, TaskHead).score)
    key = task_key(head.config)
    for (start, end), vectors in zip(
        itertools.pairwise(batch.cu_seqlens), token_vectors, strict=True
    ):
        expected = scores_of_text(head, hidden[start:end])
        comparison.add({key: expected}, {key: vectors}, tolerances)


def measure_similarity(artifact: Artifact, encoder: Encoder, runtime: Runtime) -> Similarity:
    """Compare the vectors of the samples for similarity, without a prompt, all tokens pooled."""
    vectors = TextVectors.of(artifact)
    last = artifact.manifest.config.num_hidden_layers
    exact: list[Floats] = []
    approximate: list[Floats] = []
    for batch in samples_of(artifact).similarity():
        texts = range(len(batch.padded_index))
        exact += vectors.units(pooled_vectors(encoder, batch, vectors))
        poolings = [TextPooling(text, last, vectors.pooling) for text in texts]
        approximate += vectors.units(runtime.encode(batch, [], poolings)[1])
    return similarity(np.stack(exact), np.stack(approximate))


LENGTHS = (2, 3, 7, 16, 33, 64, 128)
BATCH_SIZES = (1, 2, 5, 8)
TEXT_BATCHES = 2
"""Number of batches of golden and unusual texts at the start of the grid."""
MAP_BYTES = 2**28
"""Memory in bytes of all maps of the longest text, if it has more than `ALWAYS_TOKENS`."""
ALWAYS_COMPARED: set[Kind] = {"hidden", "attention", "pooled"}
"""Kinds of tensors that every encoder has."""
ALWAYS_TOKENS = 512
"""Length up to which texts are verified, whatever memory their maps take."""


@dataclass
class Verification:
    """Comparison of ONNX with PyTorch."""

    precision: Precision
    provider: str
    """Hardware that computed, as the runtime reports it."""
    tolerances: Mapping[Kind, Tolerance]
    comparison: Comparison = field(default_factory=Comparison)
    similarity: Similarity | None = None
    emulated: bool = False
    """Whether attention of the graph of vectors was emulated."""

    def record(self) -> VerificationRecord:
        """Return the record for the manifest, with the verdict on each use.

        In fp32 and fp16, each use needs every tensor.
        """
        compared = {key.kind for key in self.comparison.differences} | ALWAYS_COMPARED
        kinds = [kind for kind in self.tolerances if kind in compared]
        at_least = SIMILARITY_AT_LEAST.get(self.precision, {}) if self.similarity else {}
        failed: dict[Use, str | None] = {}
        for use in USES:
            both = self.precision not in SIMILARITY_AT_LEAST
            part = self.comparison.of(USES if both else (use,))
            failed[use] = None if part.passed else first_failure(part, self.tolerances)
        if self.similarity and not failed["vectors"]:
            failed["vectors"] = shortfall(self.similarity, at_least)
        verdicts = {use: Verdict(passed=why is None, failed=why) for use, why in failed.items()}
        return VerificationRecord(
            vectors=verdicts["vectors"],
            heads=verdicts["heads"],
            provider=self.provider,
            emulated=self.emulated,
            inputs=self.comparison.inputs,
            tolerances={kind: asdict(self.tolerances[kind]) for kind in kinds},
            max_abs_diff_below={
                kind: next_power_of_ten(self.comparison.worst(kind).max_abs_diff) for kind in kinds
            },
            min_cosine={kind: round(self.comparison.worst(kind).min_cosine, 4) for kind in kinds},
            similarity=self.similarity,
            similarity_at_least=dict(at_least),
        )


def verify(artifact: Artifact, device: Device = "cpu") -> Verification:
    """Run an artifact's graphs and its PyTorch modules over the grid and compare all tensors.

    The tensors are all hidden states, every head's map, the pooled unit vector of each text, and
    outputs of a task head and of a decoder. Batches have mixed lengths, so that a leak from one
    text into another shows as a difference. If float32 disagrees, PyTorch's own rounding error is
    measured and the comparison repeated (see `model.export.tensors`). The device runs the graphs;
    PyTorch runs on the CPU.

    Raises:
        ModelError: the artifact's files cannot be loaded, or the device is missing.

    """
    manifest = artifact.manifest
    modules, runtime = load_modules(artifact), load_runtime(artifact, Resources(device))
    tolerances = tolerances_of(manifest.precision, *manifest.depths)
    emulated = isinstance(runtime, BoundRuntime) and emulate(artifact, runtime)
    result = Verification(manifest.precision, runtime.provider, tolerances, emulated=emulated)
    for name, signature in manifest.signature.items():
        graph = onnx.load(artifact.path(GRAPHS[name]), load_external_data=False).graph
        result.comparison.mismatches += signature_mismatches(graph, signature)
    if result.comparison.mismatches:
        return result
    _compare(artifact, modules, runtime, result)
    if manifest.precision in SIMILARITY_AT_LEAST and manifest.task is None:
        result.similarity = measure_similarity(artifact, modules.encoder, runtime)
    if result.record().passed or result.comparison.mismatches or manifest.precision != "fp32":
        return result
    batches = map(pack_samples, grid(artifact))
    measured = with_rounding(modules, batches, TextVectors.of(artifact), tolerances)
    if measured == tolerances:
        return result
    result = Verification(manifest.precision, runtime.provider, measured, emulated=emulated)
    _compare(artifact, modules, runtime, result)
    return result


def _compare(artifact: Artifact, modules: Modules, runtime: Runtime, result: Verification) -> None:
    """Add all tensors of the grid to a verification."""
    vectors = TextVectors.of(artifact)
    coarse = artifact.manifest.precision in SIMILARITY_AT_LEAST
    for number, texts in enumerate(grid(artifact)):
        batch = pack_samples(texts)
        references = reference_tensors(modules, batch, vectors)
        candidates = candidate_tensors(runtime, batch, vectors)
        of_texts = number < TEXT_BATCHES
        if coarse and (of_texts or len(texts) > 1):
            alone = [runtime_tensors(runtime, pack_samples([text]), vectors)[0] for text in texts]
            add_checks(references, candidates, alone, of_texts=of_texts)
        for reference, candidate in zip(references, candidates, strict=True):
            result.comparison.add(reference, candidate, result.tolerances)
    if modules.head is not None and modules.head.config.late is not None:
        compare_filled_up(
            modules.encoder, modules.head, runtime, result.comparison, result.tolerances
        )


def report(result: Verification) -> str:
    """Return a report: one line for each mismatch and layer, the first failure, the verdict."""
    lines = list(result.comparison.mismatches)
    by_layer: dict[Key, Difference] = {}
    for key, difference in result.comparison.differences.items():
        layer = replace(key, head=0)
        by_layer[layer] = by_layer[layer].worst(difference) if layer in by_layer else difference
    for kind in result.tolerances:
        lines += [_line(key, d, result) for key, d in by_layer.items() if key.kind == kind]
    if result.similarity:
        lines += [f"{name:<17} {value:g}" for name, value in result.similarity]
        lines.append(bounds_line(result.precision))
    record = result.record()
    if record.vectors != record.heads:
        lines += [f"{use}: {_word(record.verdict(use))}" for use in USES]
    if result.comparison.differences and record.failed:
        lines.append(record.failed)
    verdict = "passed" if record.passed else "FAILED"
    last = f"{verdict}: {record.inputs} inputs, ONNX against PyTorch, {result.precision} on "
    return "\n".join([*lines, last + result.provider])


def _line(key: Key, worst: Difference, result: Verification) -> str:
    tolerance = key.tolerance(result.tolerances)
    name = f"{key.kind} {key.check}".strip()
    return (
        f"{name:<17} layer {key.layer:<3} max abs diff {worst.max_abs_diff:.1e}  "
        f"min cosine {worst.min_cosine:.9f}  atol {tolerance.atol:g}  rtol {tolerance.rtol:g}  "
        f"cosine at least {tolerance.cosine_at_least:g}  {_word(worst)}"
    )


def _word(outcome: Difference | Verdict) -> str:
    return "passed" if outcome.passed else "FAILED"


def longest_text(config: EncoderConfig, decoder: DecoderConfig | None = None) -> int:
    """Return the length of the longest text: the encoder's maximum, or the limit of `MAP_BYTES`.

    PyTorch keeps the maps of all heads in memory at once, including those of a decoder's target as
    long as its text.
    """
    heads = config.num_hidden_layers * config.num_attention_heads
    if decoder is not None:
        heads += 2 * decoder.layers.num_hidden_layers * decoder.layers.num_attention_heads
    room = math.isqrt(MAP_BYTES // (4 * heads))
    return min(config.max_position_embeddings, max(ALWAYS_TOKENS, room))


def grid(artifact: Artifact) -> Iterator[list[Sample]]:
    """Yield batches: golden and unusual inputs, each length alone, mixed batches."""
    config, sentence = artifact.manifest.config, artifact.manifest.sentence
    longest = longest_text(config, artifact.manifest.decoder)
    samples, generator = samples_of(artifact), np.random.default_rng(0)
    lengths = sorted(
        {*(n for n in LENGTHS if n < longest), min(sentence.max_length, longest), longest}
    )
    yield list(samples.golden())
    yield samples.unusual(longest)
    for n in lengths:
        yield [samples.random(n, generator)]
    for size in BATCH_SIZES:
        yield [
            samples.random(int(n), generator)
            for n in generator.choice(lengths[: len(LENGTHS)], size)
        ]


def signature_mismatches(graph: onnx.GraphProto, signature: GraphSignature) -> list[str]:
    """Return messages about names, dtypes and axes of a graph that differ from the signature."""
    mismatches = []
    for part, specs, values in (
        ("inputs", signature.inputs, graph.input),
        ("outputs", signature.outputs, graph.output),
    ):
        expected = {spec.name: (spec.dtype, list(spec.axes)) for spec in specs}
        actual = {value.name: _describe(value.type.tensor_type) for value in values}
        if expected != actual:
            mismatches.append(f"the graph's {part} are {actual}, not {expected}")
    return mismatches


def _describe(tensor: onnx.TypeProto.Tensor) -> tuple[str, list[int | str]]:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    return dtype, [dim.dim_param or dim.dim_value for dim in tensor.shape.dim]
