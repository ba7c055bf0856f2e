"""Comparison of two sets of tensors: names, then axes, then shapes, then values.

numpy only; all checks run before a verdict.

Notation: S tokens of a text, T tokens of a decoder's target for it, H hidden size, L_d layers and N
heads of the decoder.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from model.config.decoder import DecoderConfig
from model.config.encoder import EncoderConfig
from model.config.precision import Precision, Use
from model.numerics.similarity import CHECK_AT_LEAST, Check
from model.numerics.task_head import TaskConfig

Floats = NDArray[np.float32]
DecoderKind = Literal[
    "decoder_hidden",
    "cross_queries",
    "decoder_attention",
    "decoder_values",
    "cross_attention",
    "cross_values",
    "logprobs",
]
Kind = Literal["hidden", "attention", "values", "pooled", "task", "token_vectors"] | DecoderKind


@dataclass(frozen=True)
class Tolerance:
    """Bounds of a comparison: |v − r| ≤ atol + rtol · max|r|, and a cosine of each row.

    Differences are relative to a tensor's largest value: a few features of a hidden state may be a
    thousand times the others, and sums of both are rounded to the size of the larger.
    """

    atol: float
    rtol: float
    cosine_at_least: float


TOLERANCES: Mapping[Precision, Mapping[Kind, Tolerance]] = {
    "fp32": {
        "hidden": Tolerance(1e-4, 1e-5, 0.99999),
        "attention": Tolerance(1e-5, 0.0, 0.99999),
        "values": Tolerance(0.0, 1e-4, 0.99999),
        "pooled": Tolerance(1e-5, 0.0, 0.99999),
        "task": Tolerance(1e-4, 1e-5, -1.0),
        "token_vectors": Tolerance(1e-4, 1e-5, 0.99999),
    },
    "fp16": {
        "hidden": Tolerance(0.05, 2e-3, 0.9999),
        "attention": Tolerance(0.02, 0.0, 0.999),
        "values": Tolerance(0.0, 0.02, 0.999),
        "pooled": Tolerance(0.001, 0.0, 0.99999),
        "task": Tolerance(0.05, 0.01, -1.0),
        "token_vectors": Tolerance(0.02, 2e-3, 0.9999),
    },
    "bf16": {
        "hidden": Tolerance(0.5, 0.02, 0.99),
        "attention": Tolerance(0.1, 0.0, 0.99),
        "values": Tolerance(0.0, 0.2, 0.9),
        "pooled": Tolerance(0.5, 0.0, 0.9),
        "task": Tolerance(0.5, 0.1, -1.0),
        "token_vectors": Tolerance(0.5, 0.02, 0.99),
    },
    "int8": {
        "hidden": Tolerance(10.0, 0.1, 0.5),
        "attention": Tolerance(1.0, 0.0, 0.5),
        "values": Tolerance(0.0, 1.0, 0.3),
        "pooled": Tolerance(1.0, 0.0, 0.3),
        "task": Tolerance(10.0, 0.5, -1.0),
        "token_vectors": Tolerance(1.0, 0.1, 0.5),
    },
}
"""Tolerances by precision, for encoders of few layers; `tolerances_of` has them for any depth.

They also cover random token ids, which are harder than any text: 8-bit maps of the last layers can
be far off there. In bf16 and int8 the bounds of pooled vectors only detect broken graphs;
`model.numerics.similarity` has the bounds of their quality. The cosine of a single logit is only a
sign, so task heads are held to differences. Unit vectors of late-interaction tokens turn with their
hidden states. Value products of any size, of rounded states, are held to their largest value."""
_LIKE: Mapping[DecoderKind, Kind] = {
    "decoder_hidden": "hidden",
    "cross_queries": "hidden",
    "decoder_attention": "attention",
    "cross_attention": "attention",
    "decoder_values": "values",
    "cross_values": "values",
    "logprobs": "task",
}
"""Kind of a decoder's tensors → kind whose bounds they share."""
_FEW_LAYERS = 6


def tolerances_of(
    precision: Precision, layers: int, decoder_layers: int = 0
) -> Mapping[Kind, Tolerance]:
    """Return the bounds of each kind of tensor for a model with these numbers of layers.

    A float32 map may differ by 1e-5, and by 1e-5 more for each layer beyond six. Each side rounds
    in each layer, and the stream of hidden states accumulates the errors. A map follows from the
    stream without being measured by its size; hidden states are, and coarser precisions have bounds
    for rounding in any layer. A decoder's layers come after the encoder's.
    """
    own = TOLERANCES[precision]
    tolerances = dict(own)
    if decoder_layers:
        tolerances |= {kind: own[like] for kind, like in _LIKE.items()}
    depths: dict[Kind, int] = {"attention": layers}
    depths |= dict.fromkeys(("decoder_attention", "cross_attention"), layers + decoder_layers)
    for kind, depth in depths.items():
        beyond = max(0, depth - _FEW_LAYERS)
        if precision == "fp32" and beyond and kind in tolerances:
            atol = round((1 + beyond) * tolerances[kind].atol, 9)
            tolerances[kind] = replace(tolerances[kind], atol=atol)
    return tolerances


@dataclass(frozen=True)
class Key:
    """Name of a tensor: its kind, and the layer and head it belongs to."""

    kind: Kind
    layer: int = 0
    head: int = 0
    check: Check = ""
    """Check of texts that compares the tensor; empty if no check does."""

    @property
    def use(self) -> Use:
        """Use of an artifact that depends on the tensor: `heads` for all tensors of layers."""
        return "heads" if self.of_layer else "vectors"

    @property
    def of_head(self) -> bool:
        """Whether the tensor belongs to one head of a layer."""
        return self.kind.endswith("attention")

    @property
    def of_layer(self) -> bool:
        """Whether the tensor belongs to one layer or to one of its heads."""
        return self.of_head or self.kind.endswith(("hidden", "queries", "values"))

    def tolerance(self, tolerances: Mapping[Kind, Tolerance]) -> Tolerance:
        """Return the bounds of the tensor: its kind's tolerance, its check's minimum cosine."""
        own = tolerances[self.kind]
        return replace(own, cosine_at_least=max(own.cosine_at_least, CHECK_AT_LEAST[self.check]))

    def __str__(self) -> str:
        where = f" {self.layer}" if self.of_layer else ""
        where += f".{self.head}" if self.of_head else ""
        return self.kind + where + (f" ({self.check})" if self.check else "")


@dataclass(frozen=True)
class Difference:
    """Difference of one tensor from its reference."""

    max_abs_diff: float
    min_cosine: float
    """Smallest cosine of a row with the reference's row."""
    passed: bool

    def worst(self, other: Difference) -> Difference:
        """Return the larger difference and the smaller cosine of the two."""
        return Difference(
            max(self.max_abs_diff, other.max_abs_diff),
            min(self.min_cosine, other.min_cosine),
            self.passed and other.passed,
        )


@dataclass
class Comparison:
    """Differences by tensor, and mismatches of names, axes and shapes."""

    mismatches: list[str] = field(default_factory=list)
    differences: dict[Key, Difference] = field(default_factory=dict)
    inputs: int = 0

    @property
    def passed(self) -> bool:
        """Whether at least one tensor was compared and all are within tolerance."""
        within = all(difference.passed for difference in self.differences.values())
        return bool(self.differences) and not self.mismatches and within

    def of(self, uses: Collection[Use]) -> Comparison:
        """Return the comparison restricted to the given uses, with all mismatches."""
        kept = {key: difference for key, difference in self.differences.items() if key.use in uses}
        return Comparison(self.mismatches, kept, self.inputs)

    def summary(self) -> str:
        """Return one line: the number of failed tensors, and the first of them."""
        if self.mismatches:
            return f"{len(self.mismatches)} mismatches, first: {self.mismatches[0]}"
        failed = {
            key: difference for key, difference in self.differences.items() if not difference.passed
        }
        if not failed:
            return f"{len(self.differences)} tensors agree"
        key, difference = next(iter(failed.items()))
        return (
            f"{len(failed)} of {len(self.differences)} tensors, first: {key}, max abs diff "
            f"{difference.max_abs_diff:.1e}, min cosine {difference.min_cosine:.6f}"
        )

    def worst(self, kind: Kind) -> Difference:
        """Return the largest difference and smallest cosine of a kind; 0 and 1 without tensors."""
        own = (difference for key, difference in self.differences.items() if key.kind == kind)
        return functools.reduce(Difference.worst, own, Difference(0.0, 1.0, passed=True))

    def add(
        self,
        reference: Mapping[Key, Floats],
        candidate: Mapping[Key, Floats],
        tolerances: Mapping[Kind, Tolerance],
    ) -> None:
        """Compare the tensors of one text; keep the worst difference of each key."""
        self.inputs += 1
        self.mismatches += [f"{key} is missing" for key in reference if key not in candidate]
        self.mismatches += [f"{key} is unexpected" for key in candidate if key not in reference]
        for key, expected in reference.items():
            if key not in candidate:
                continue
            actual = candidate[key]
            if actual.ndim != expected.ndim:
                self.mismatches.append(f"{key} has {actual.ndim} axes, not {expected.ndim}")
            elif actual.shape != expected.shape:
                self.mismatches.append(f"{key} is {actual.shape}, not {expected.shape}")
            else:
                new = difference(expected, actual, key.tolerance(tolerances))
                old = self.differences.get(key)
                self.differences[key] = old.worst(new) if old else new


def difference(reference: Floats, candidate: Floats, tolerance: Tolerance) -> Difference:
    """Compare two tensors of one shape; a value that is not finite never passes."""
    if not (np.isfinite(reference).all() and np.isfinite(candidate).all()):
        return Difference(max_abs_diff=float("inf"), min_cosine=-1.0, passed=False)
    reference = reference.astype(np.float64)
    candidate = candidate.astype(np.float64)
    gap = np.abs(candidate - reference)
    within = gap <= tolerance.atol + tolerance.rtol * np.abs(reference).max(initial=0.0)
    norms = np.linalg.norm(reference, axis=-1) * np.linalg.norm(candidate, axis=-1)
    products = (reference * candidate).sum(axis=-1)
    # equal rows agree, even rows of zeros
    cosine = np.where(gap.any(axis=-1), products / np.maximum(norms, 1e-30), 1.0)
    return Difference(
        max_abs_diff=float(gap.max(initial=0.0)),
        min_cosine=float(cosine.min(initial=1.0)),
        passed=bool(within.all() and (cosine >= tolerance.cosine_at_least).all()),
    )


def keyed(
    hidden: Sequence[Floats], maps: Iterable[Floats], unit: Callable[[Floats], Floats]
) -> dict[Key, Floats]:
    """Return one text's tensors by key.

    `hidden` are L + 1 states `[S, H]`, `maps` `[N, S, S]` of each layer; `unit` maps the last
    hidden state to the text's unit vector, as `TextVectors.unit`.
    """
    tensors = {Key("hidden", layer): state for layer, state in enumerate(hidden)}
    return tensors | keyed_maps("attention", maps) | {Key("pooled"): unit(hidden[-1])}


def keyed_maps(kind: Kind, maps: Iterable[Floats]) -> dict[Key, Floats]:
    """Return the maps `[N, T, S]` of each layer, all of one kind, by key."""
    return {
        Key(kind, layer, head): weights
        for layer, heads in enumerate(maps)
        for head, weights in enumerate(heads)
    }


def task_key(task: TaskConfig) -> Key:
    """Return the key of a task head's outputs."""
    return Key("token_vectors" if "multivector" in task.vectors else "task")


def shift_right(labels: NDArray[np.int64], start_token_id: int | None) -> NDArray[np.int64]:
    """Return labels `[T]` shifted right, `[T]`: the start token, then all labels but the last.

    Without a start token the last label comes first, as in mBART.
    """
    shifted = np.roll(labels, 1)
    if start_token_id is not None:
        shifted[:1] = start_token_id
    return shifted


Ids = NDArray[np.int64]


@dataclass(frozen=True)
class TargetTensors:
    """A target's tensors, in float32."""

    hidden: Floats
    """`[L_d + 1, T, H]`."""
    cross_queries: Floats
    """`[L_d, T, H]`."""
    maps: Floats
    """`[L_d, N, T, T]`, attention weights of the decoder's self-attention."""
    cross_maps: Floats
    """`[L_d, N, T, S]`."""
    logprobs: Floats
    """`[T]`."""

    def keyed(self) -> dict[Key, Floats]:
        """Return the tensors by key."""
        states = {Key("decoder_hidden", layer): state for layer, state in enumerate(self.hidden)}
        queries = {Key("cross_queries", n): state for n, state in enumerate(self.cross_queries)}
        return {
            **states,
            **queries,
            **keyed_maps("decoder_attention", self.maps),
            **keyed_maps("cross_attention", self.cross_maps),
            Key("logprobs"): self.logprobs,
        }


def random_labels(decoder: DecoderConfig, tokens: int, seed: int) -> Ids:
    """Return `tokens` random labels of a target, but at most the decoder's positions."""
    config: EncoderConfig = decoder.layers
    length = min(tokens, config.max_position_embeddings)
    return np.random.default_rng(seed).integers(0, config.vocab_size, length)
