"""Verification of a foreign graph against itself, without a PyTorch reference.

A text alone and the same text beside longer ones, in a padded batch, must give the same: attention
to padding or to other texts shows as a difference. Rows of attention weights, if the graph has
them, must sum to 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import numpy as np

from model.artifact.golden import Ids, golden_inputs
from model.artifact.manifest import TOKENIZER, Artifact
from model.artifact.tokenizer import read_tokenizer
from model.artifact.verification import Verdict, VerificationRecord, next_power_of_ten
from model.errors import CheckpointError, ModelError
from model.export.foreign_attentions import ROUNDING, row_sums_off
from model.numerics.batch import pack
from model.numerics.comparison import TOLERANCES, Difference, difference
from model.runtimes.capabilities import GraphMaps, find
from model.runtimes.contract import Floats, Runtime
from model.runtimes.registry import load_for_trial

LONGEST = 512
"""Maximum tokens of a text in the trial."""


def verify_alone(artifact: Artifact) -> VerificationRecord:
    """Compare hidden states of texts alone and in one batch; check the sums of attention weights.

    Raises:
        CheckpointError: the graph fails on a text that the config allows.
        ModelError: the graph cannot be loaded, or its computation does not end.

    """
    manifest = artifact.manifest
    runtime = load_for_trial(artifact)
    texts = list(_texts(artifact))
    alone = [_states(runtime, [text]) for text in texts]
    ends = np.cumsum([len(ids) for ids, _ in texts])
    together = np.split(_states(runtime, texts), ends[:-1])
    tolerance = TOLERANCES[manifest.precision]["hidden"]
    worst = Difference(0.0, 1.0, passed=True)
    for single, batched in zip(alone, together, strict=True):
        worst = worst.worst(difference(single, batched, tolerance))
    graph_maps = find(runtime, GraphMaps)
    sums = _row_sums_off(graph_maps, texts) if graph_maps else 0.0
    failed = None
    if sums > ROUNDING:
        failed = f"attention weights: a row's sum is {sums:.1e} from 1 (at most {ROUNDING:g})"
    verdict = Verdict(passed=worst.passed and failed is None, failed=failed)
    return VerificationRecord(
        reference="itself",
        vectors=verdict,
        heads=verdict,
        provider=runtime.provider,
        inputs=len(texts),
        tolerances={"hidden": asdict(tolerance)},
        max_abs_diff_below={"hidden": next_power_of_ten(worst.max_abs_diff)},
        min_cosine={"hidden": round(worst.min_cosine, 4)},
    )


def _texts(artifact: Artifact) -> Iterator[tuple[Ids, Ids]]:
    """Yield token ids and segment ids: golden texts, one token, and the maximum length."""
    config = artifact.manifest.config
    yield from golden_inputs(read_tokenizer(artifact.path(TOKENIZER)), config)
    generator = np.random.default_rng(1)
    for length in (1, min(LONGEST, artifact.manifest.sentence.max_length)):
        ids = generator.integers(0, config.vocab_size, length)
        yield ids, np.zeros_like(ids)


def _row_sums_off(graph: GraphMaps, texts: list[tuple[Ids, Ids]]) -> float:
    """Return the largest difference from 1 of a row's sum in any text's maps."""
    return max(row_sums_off(graph.maps(pack([text]))) for text in texts)


def _states(runtime: Runtime, texts: list[tuple[Ids, Ids]]) -> Floats:
    """Return the last hidden state `[T, H]` of texts in one batch."""
    try:
        (states,) = runtime.hidden_states(pack(texts), [runtime.config.num_hidden_layers])
    except ModelError:
        raise
    except Exception as error:  # the runtimes' exceptions share no base class
        longest = max(len(ids) for ids, _ in texts)
        reason = str(error).splitlines()[0]
        raise CheckpointError(
            f"the graph cannot compute a batch of texts of up to {longest} tokens, which its "
            f"config allows: {reason}"
        ) from None
    return states
