"""A text of /attention, its target, and the states that their maps are computed from.

Notation: S tokens of a text, T of its target, H hidden size, L layers of the encoder.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from model.artifact.manifest import Manifest
from model.artifact.shift import shift_right
from model.artifact.signature import MapKind
from service.engines.contract import Floats, Ids, Output, Pooling, Target, TextTask
from service.inference.attention.layer_passes import LayerPass
from service.inference.attention.selection import AttentionSelection, Lengths
from service.inference.tokenization.tokenizer import TextTokenizer, TokenizedText


@dataclass(frozen=True)
class StateLayers:
    """Layers whose states are needed, ascending."""

    encoder: tuple[int, ...]
    """Of the encoder's hidden states."""
    decoder: tuple[int, ...]
    """Of the decoder's hidden states."""
    cross: tuple[int, ...]
    """Of the query states of the decoder's cross-attention, whose keys are the encoder's last."""
    last: int
    """L."""

    @classmethod
    def of(cls, passes: Sequence[LayerPass], last: int) -> StateLayers:
        """Those that some passes need, of an encoder of so many layers."""
        encoder, decoder, cross = (
            tuple(sorted({one.layer for one in passes if one.kind == kind}))
            for kind in ("encoder", "decoder", "cross")
        )
        return cls((*encoder, last) if cross else encoder, decoder, cross, last)

    @property
    def most(self) -> int:
        """Most vectors that one token has."""
        return max(len(self.encoder), len(self.decoder) + len(self.cross))

    def rows(self, text: AttentionText) -> int:
        """Vectors of H that a text's states have."""
        source, target = text.lengths
        return len(self.encoder) * source + (len(self.decoder) + len(self.cross)) * target

    def states(self, output: Output) -> States:
        """Those of a text."""
        target = output.target
        return States(
            dict(zip(self.encoder, output.hidden, strict=True)),
            dict(zip(self.decoder, target.hidden if target else (), strict=True)),
            dict(zip(self.cross, target.cross if target else (), strict=True)),
            self.last,
        )


@dataclass(frozen=True)
class States:
    """The states of one text by layer; `[S, H]` of the encoder, else `[T, H]`."""

    encoder: dict[int, Floats]
    decoder: dict[int, Floats]
    cross: dict[int, Floats]
    last: int

    def queries_and_keys(self, one: LayerPass) -> tuple[Floats, Floats]:
        """What a layer's heads project: of self-attention one array twice."""
        if one.kind == "cross":
            return self.cross[one.layer], self.encoder[self.last]
        own = self.encoder if one.kind == "encoder" else self.decoder
        return own[one.layer], own[one.layer]


@dataclass(frozen=True)
class AttentionTarget:
    """What a decoder is to have written of a text."""

    text: TokenizedText
    separators: tuple[int, ...]
    """Positions of separators among the tokens that it reads, of which the start token is first."""


@dataclass(frozen=True)
class AttentionText:
    """A text, and what the service knows of it."""

    text: TokenizedText
    separators: tuple[int, ...]
    """Positions of its separator tokens."""
    pooling: Pooling
    target: AttentionTarget | None = None

    @property
    def lengths(self) -> Lengths:
        """S and T."""
        target = len(self.target.text.input_ids) if self.target else 0
        return Lengths(len(self.text.input_ids), target)

    def separators_of(self, kind: MapKind) -> tuple[int, ...]:
        """Positions of separators among the keys of a map."""
        return self.target.separators if self.target and kind == "decoder" else self.separators

    def task(self, layers: StateLayers, selection: AttentionSelection) -> TextTask:
        """Its forward pass, with the selection's ablation."""
        return TextTask(
            self.text.input_ids,
            self.text.segment_ids,
            layers.encoder,
            self.pooling if selection.ablates else None,
            selection.ablated,
            target=self._target(layers, selection),
        )

    def whole_task(self) -> TextTask:
        """Its forward pass without ablation: what the other one is compared with."""
        target = Target(self.target.text.input_ids, logprobs=True) if self.target else None
        return TextTask(
            self.text.input_ids, self.text.segment_ids, pooling=self.pooling, target=target
        )

    def _target(self, layers: StateLayers, selection: AttentionSelection) -> Target | None:
        """What is asked of the decoder; None if nothing is."""
        asked = selection.target
        if self.target is None or asked is None:
            return None
        logprobs = asked.logprobs or selection.ablates
        if not (layers.decoder or layers.cross or logprobs):
            return None
        return Target(
            self.target.text.input_ids,
            layers.decoder,
            layers.cross,
            logprobs,
            asked.ablated,
            asked.cross_ablated,
        )


def attention_texts(
    manifest: Manifest,
    tokenizer: TextTokenizer,
    texts: Sequence[TokenizedText],
    targets: Sequence[TokenizedText],
) -> list[AttentionText]:
    """The texts of a request with their targets.

    Args:
        manifest: of the model.
        tokenizer: of the model, which knows what ends a text.
        texts: at least one.
        targets: one a text, or none.

    """
    sentence, decoder = manifest.sentence, manifest.decoder

    def separators(ids: Ids, ends: Collection[int] = tokenizer.separator_ids) -> tuple[int, ...]:
        return tuple(np.isin(ids, [*ends]).nonzero()[0].tolist())

    aimed: Sequence[AttentionTarget | None] = [None] * len(texts)
    if targets and decoder:
        read = [shift_right(target.input_ids, decoder.start_token_id) for target in targets]
        aimed = [
            AttentionTarget(target, separators(ids, tokenizer.target_separator_ids))
            for target, ids in zip(targets, read, strict=True)
        ]
    return [
        AttentionText(
            text,
            separators(text.input_ids),
            Pooling(
                manifest.config.num_hidden_layers, sentence.pooling, text.first_pooled(sentence)
            ),
            target,
        )
        for text, target in zip(texts, aimed, strict=True)
    ]
