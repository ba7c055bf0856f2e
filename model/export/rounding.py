"""Rounding error of float32 itself: PyTorch in float32 against PyTorch in float64.

A change of all scores by at most ε changes a softmax weight by at most ε / 2, and a score of size s
has a rounding error of about s · 2⁻²⁴. T5's scores are not divided by √p, and become so large that
two correct float32 computations differ by more than a bound for scores of a few units; so do later
tensors. In such cases the tolerance follows from the reference's own error.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from model.artifact.manifest import Artifact
from model.artifact.vectors import TextVectors
from model.export.loading import Modules
from model.export.tensors import labels_for, torch_targets, torch_tensors
from model.numerics.batch import Batch
from model.numerics.comparison import Floats, Key, Kind, Tolerance
from model.runtimes.pytorch import load_decoder, load_encoder, load_head

MARGIN = 4.0
"""Allowed difference of two float32 computations, as a multiple of one's error against float64."""
MOST = 100.0
"""Largest factor of a kind's bound; beyond, float32 cannot be a reference."""


def load_references(artifact: Artifact) -> Modules:
    """Load the float32 modules of an artifact."""
    return Modules(load_encoder(artifact), load_head(artifact), load_decoder(artifact))


def with_rounding(
    modules: Modules,
    batches: Iterable[Batch],
    vectors: TextVectors,
    tolerances: Mapping[Kind, Tolerance],
) -> Mapping[Kind, Tolerance]:
    """Return tolerances widened by the reference's own rounding error.

    The absolute bound of a kind becomes `MARGIN` times the largest difference of any of its tensors
    from float64, minus what its relative bound allows there, rounded up to one digit. It never
    decreases, and increases at most `MOST`-fold.
    """
    exact = Modules(
        copy.deepcopy(modules.encoder).double(),
        copy.deepcopy(modules.head).double() if modules.head else None,
        copy.deepcopy(modules.decoder).double() if modules.decoder else None,
    )
    needed: dict[Kind, float] = {}
    for batch in batches:
        rounded = reference_tensors(modules, batch, vectors)
        for approximate, expected in zip(
            rounded, reference_tensors(exact, batch, vectors), strict=True
        ):
            for key, tensor in expected.items():
                gap = float(np.abs(approximate[key] - tensor).max(initial=0.0))
                size = float(np.abs(tensor).max(initial=0.0))
                beyond = MARGIN * gap - tolerances[key.kind].rtol * size
                needed[key.kind] = max(needed.get(key.kind, 0.0), beyond)
    return {
        kind: _allowing(tolerance, needed.get(kind, 0.0)) for kind, tolerance in tolerances.items()
    }


def reference_tensors(
    modules: Modules, batch: Batch, vectors: TextVectors
) -> list[dict[Key, Floats]]:
    """Return all tensors of each text and of its target, in the modules' type."""
    texts = torch_tensors(modules.encoder, batch, vectors, modules.head)
    if modules.decoder is None:
        return texts
    last = Key("hidden", modules.encoder.config.num_hidden_layers)
    labels = labels_for(batch, modules.decoder.config)
    targets = torch_targets(modules.decoder, batch, [text[last] for text in texts], labels)
    return [text | target.keyed() for text, target in zip(texts, targets, strict=True)]


def _allowing(tolerance: Tolerance, needed: float) -> Tolerance:
    """Return a tolerance widened by a difference; unchanged if the difference is not finite."""
    if not tolerance.atol < needed < math.inf:
        return tolerance
    digit = 10.0 ** math.floor(math.log10(needed))
    atol = float(f"{math.ceil(needed / digit) * digit:.0e}")
    return replace(tolerance, atol=min(atol, MOST * tolerance.atol))
