"""Targets of a batch's texts through the runtime's decoder: one forward pass for all of them.

Notation: that of `service.engines.contract`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from model.artifact.batch import pack
from model.artifact.shift import shift_right
from model.config.decoder import DecoderConfig
from model.runtimes.contract import Decoding, Runtime
from service.engines.contract import Floats, Target, TargetOutput, TextTask
from service.engines.head_masks import head_mask

Aimed = tuple[TextTask, Target]


def decode(
    runtime: Runtime, decoder: DecoderConfig, aimed: Sequence[Aimed], encoded: Sequence[Floats]
) -> list[TargetOutput]:
    """What each text's target asks for.

    Args:
        runtime: with a decoder.
        decoder: its config.
        aimed: texts and their targets; at least one.
        encoded: the last hidden state of each text, `[S, H]`.

    """
    asked = _asked(decoder, aimed, encoded)
    states, cross = map(iter, runtime.decode(asked))
    outputs = [
        TargetOutput(
            [next(states) for _ in target.hidden_layers],
            [next(cross) for _ in target.cross_layers],
        )
        for _, target in aimed
    ]
    scored = [text for text, (_, target) in enumerate(aimed) if target.logprobs]
    if scored:
        rows = np.concatenate(list(states))
        labels = [aimed[text][1].labels for text in scored]
        logprobs = runtime.logprobs(rows, np.concatenate(labels))
        cuts = np.cumsum([len(each) for each in labels])[:-1]
        for text, found in zip(scored, np.split(logprobs, cuts), strict=True):
            outputs[text].logprobs = found
    return outputs


def _asked(decoder: DecoderConfig, aimed: Sequence[Aimed], encoded: Sequence[Floats]) -> Decoding:
    """The states asked for, and after them the last of each target whose labels are scored."""
    targets = [target for _, target in aimed]
    read = [shift_right(target.labels, decoder.start_token_id) for target in targets]
    last = decoder.layers.num_hidden_layers
    return Decoding(
        source=pack(
            [(task.input_ids, task.segment_ids) for task, _ in aimed],
            [task.unseen for task, _ in aimed],
        ),
        encoded=np.concatenate(encoded),
        target=pack([(ids, np.zeros_like(ids)) for ids in read]),
        states=[(n, layer) for n, target in enumerate(targets) for layer in target.hidden_layers]
        + [(n, last) for n, target in enumerate(targets) if target.logprobs],
        cross=[(n, layer) for n, target in enumerate(targets) for layer in target.cross_layers],
        head_mask=head_mask([target.ablated for target in targets], decoder.layers),
        cross_head_mask=head_mask([target.cross_ablated for target in targets], decoder.layers),
    )
