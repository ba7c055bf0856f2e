"""Forward pass of the runtime's decoder over the targets of a batch's texts.

Notation: that of `service.engines.contract`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from model.config.decoder import DecoderConfig
from model.numerics.batch import pack
from model.numerics.shift import shift_right
from model.runtimes.capabilities import Decoder
from model.runtimes.contract import Decoding
from service.engines.contract import Floats, Target, TargetOutput, TextTask
from service.engines.head_masks import head_mask

TaskWithTarget = tuple[TextTask, Target]


def decode(
    decoder: Decoder, pairs: Sequence[TaskWithTarget], encoded: Sequence[Floats]
) -> list[TargetOutput]:
    """Return the requested outputs of each text's target.

    Args:
        decoder: the runtime's decoder.
        pairs: texts and their targets; at least one.
        encoded: last hidden state of each text, `[S, H]`.

    """
    states, cross = map(iter, decoder.decode(_decoding(decoder.config, pairs, encoded)))
    outputs = [
        TargetOutput(
            [next(states) for _ in target.hidden_layers],
            [next(cross) for _ in target.cross_layers],
        )
        for _, target in pairs
    ]
    scored = [text for text, (_, target) in enumerate(pairs) if target.logprobs]
    if scored:
        rows = np.concatenate(list(states))
        labels = [pairs[text][1].labels for text in scored]
        logprobs = decoder.logprobs(rows, np.concatenate(labels))
        cuts = np.cumsum([len(own) for own in labels])[:-1]
        for text, own in zip(scored, np.split(logprobs, cuts), strict=True):
            outputs[text].logprobs = own
    return outputs


def _decoding(
    decoder: DecoderConfig, pairs: Sequence[TaskWithTarget], encoded: Sequence[Floats]
) -> Decoding:
    """Return the decoder's batch: requested states, then the last state of each scored target."""
    targets = [target for _, target in pairs]
    inputs = [shift_right(target.labels, decoder.start_token_id) for target in targets]
    last = decoder.layers.num_hidden_layers
    return Decoding(
        source=pack(
            [(task.input_ids, task.segment_ids) for task, _ in pairs],
            [task.unseen for task, _ in pairs],
        ),
        encoded=np.concatenate(encoded),
        target=pack([(ids, np.zeros_like(ids)) for ids in inputs]),
        states=[(n, layer) for n, target in enumerate(targets) for layer in target.hidden_layers]
        + [(n, last) for n, target in enumerate(targets) if target.logprobs],
        cross=[(n, layer) for n, target in enumerate(targets) for layer in target.cross_layers],
        head_mask=head_mask([target.ablated for target in targets], decoder.layers),
        cross_head_mask=head_mask([target.cross_ablated for target in targets], decoder.layers),
    )
