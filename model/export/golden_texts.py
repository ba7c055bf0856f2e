"""Golden texts of an artifact, with PyTorch's results for each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch

from model.artifact.golden import GoldenText
from model.export.loading import Modules
from model.export.samples import Sample, pack_samples
from model.export.verify_decoder import torch_targets
from model.numerics.targets import random_labels
from model.packing import PackedBatch
from model.tasks.head import scores_of_text

LABELS = 7
"""Number of tokens of the last text's target."""


def golden_texts(modules: Modules, samples: Iterable[Sample]) -> list[GoldenText]:
    """Return golden texts; the last one has a target if there is a decoder."""
    *others, last = samples
    tokens = LABELS if modules.decoder else 0
    golden = [golden_text(modules, sample) for sample in others]
    return [*golden, golden_text(modules, last, target_tokens=tokens)]


def golden_text(modules: Modules, sample: Sample, target_tokens: int = 0) -> GoldenText:
    """Return one text with its hidden states, maps, and outputs of task head and decoder.

    Args:
        modules: the modules in float32.
        sample: the text, or picture.
        target_tokens: number of tokens of a random target; no target with 0.

    """
    source = pack_samples([sample])
    with torch.inference_mode():
        output = modules.encoder(PackedBatch.of(source), output_attentions=True)
    hidden = torch.stack(list(output.hidden_states)).numpy()
    maps = torch.cat(list(output.attentions)).numpy()
    head, decoder = modules.head, modules.decoder
    scores = scores_of_text(head, output.hidden_states[-1]) if head else None
    ids, segments = (np.array(own, np.int64) for own in sample[:2])
    golden = GoldenText(ids, segments, hidden, maps, sample.pixels, scores)
    if decoder is None or not target_tokens:
        return golden
    labels = random_labels(decoder.config, target_tokens, seed=0)
    (target,) = torch_targets(decoder, source, [hidden[-1]], [labels])
    return replace(golden, labels=labels, target=target)
