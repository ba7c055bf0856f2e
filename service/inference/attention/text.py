"""Text of /attention, its target, and the states for the computation of their maps.

Notation: S tokens of a text, T of its target, H hidden size, L layers of the encoder.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from model.artifact.manifest import Manifest
from model.artifact.signature import MapKind
from model.numerics.comparison import shift_right
from model.runtimes.contract import HiddenState
from service.engines.contract import Floats, Ids, Output, Pooling, Target, TextTask
from service.inference.attention.selection import AttentionSelection, LayerPass, Lengths
from service.inference.tokenization.text import Text


@dataclass(frozen=True)
class StateLayers:
    """Layers whose states are needed, ascending."""

    encoder: tuple[int, ...]
    """Indices of the encoder's hidden states."""
    decoder: tuple[int, ...]
    """Indices of the decoder's hidden states."""
    cross: tuple[int, ...]
    """Layers of the query states of cross-attention, whose keys are the encoder's last state."""
    last: int
    """Index L of the encoder's last hidden state."""

    @classmethod
    def of(cls, passes: Sequence[LayerPass], last: int) -> StateLayers:
        """Return the layers that passes need."""
        encoder, decoder, cross = (
            tuple(sorted({one_pass.layer for one_pass in passes if one_pass.kind == kind}))
            for kind in ("encoder", "decoder", "cross")
        )
        return cls((*encoder, last) if cross else encoder, decoder, cross, last)

    @property
    def most(self) -> int:
        """Maximum number of state vectors of a token."""
        return max(len(self.encoder), len(self.decoder) + len(self.cross))

    def rows(self, text: AttentionText) -> int:
        """Return the number of vectors of H features in a text's states."""
        source, target = text.lengths
        return len(self.encoder) * source + (len(self.decoder) + len(self.cross)) * target

    def states(self, output: Output) -> States:
        """Return the states of a text from its output."""
        target = output.target
        return States(
            dict(zip(self.encoder, output.map_states, strict=True)),
            dict(zip(self.decoder, target.hidden if target else (), strict=True)),
            dict(zip(self.cross, target.cross if target else (), strict=True)),
            self.last,
        )


@dataclass(frozen=True)
class States:
    """States of a text by layer: `[S, H]` for the encoder, else `[T, H]`."""

    encoder: dict[int, HiddenState]
    decoder: dict[int, Floats]
    cross: dict[int, Floats]
    last: int

    def queries_and_keys(self, layer_pass: LayerPass) -> tuple[HiddenState, HiddenState]:
        """Return the states that a pass projects to queries and keys, equal for self-attention."""
        layer = layer_pass.layer
        if layer_pass.kind == "cross":
            return self.cross[layer], self.encoder[self.last]
        own = self.encoder[layer] if layer_pass.kind == "encoder" else self.decoder[layer]
        return own, own


@dataclass(frozen=True)
class AttentionText:
    """Tokenised text and its target, with their separators and the text's pooling."""

    text: Text
    separators: tuple[int, ...]
    """Positions of separator tokens."""
    pooling: Pooling
    target_separators: tuple[int, ...] = ()
    """Positions of separators in the decoder's input, which begins with the start token."""

    @property
    def lengths(self) -> Lengths:
        """Number of tokens S and T."""
        return Lengths.of(self.text)

    def separators_of(self, kind: MapKind) -> tuple[int, ...]:
        """Return the positions of separators among the keys of a map."""
        return self.target_separators if kind == "decoder" else self.separators

    def task(self, layers: StateLayers, selection: AttentionSelection) -> TextTask:
        """Return the text's forward pass with the selection's ablation."""
        return TextTask(
            self.text.input_ids,
            self.text.segment_ids,
            pooling=self.pooling if selection.ablates else None,
            ablated=selection.ablated.get("encoder", ()),
            target=self._target(layers, selection),
            pixels=self.text.pixels,
            map_layers=layers.encoder,
        )

    def whole_task(self) -> TextTask:
        """Return the text's forward pass without ablation, for comparison."""
        labels = self.text.target
        target = Target(labels.input_ids, logprobs=True) if labels else None
        return TextTask(
            self.text.input_ids,
            self.text.segment_ids,
            pooling=self.pooling,
            target=target,
            pixels=self.text.pixels,
        )

    def _target(self, layers: StateLayers, selection: AttentionSelection) -> Target | None:
        """Return the decoder's part of the forward pass; None if it is not needed."""
        logprobs = "logprobs" in selection.include or selection.ablates
        if self.text.target is None or not (layers.decoder or layers.cross or logprobs):
            return None
        return Target(
            self.text.target.input_ids,
            layers.decoder,
            layers.cross,
            logprobs,
            selection.ablated.get("decoder", ()),
            selection.ablated.get("cross", ()),
        )


def attention_texts(
    manifest: Manifest,
    texts: Sequence[Text],
    separator_ids: Collection[int],
    target_separator_ids: Collection[int],
) -> list[AttentionText]:
    """Return the texts of a request.

    Args:
        manifest: manifest of the model.
        texts: tokenised texts with their targets, at least one.
        separator_ids: ids of the special tokens that end a text, such as [SEP].
        target_separator_ids: ids of the special tokens that end a target.

    """
    sentence, decoder = manifest.sentence, manifest.decoder
    layer = manifest.config.num_hidden_layers

    def separators(ids: Ids, ends: Collection[int]) -> tuple[int, ...]:
        return tuple(np.isin(ids, [*ends]).nonzero()[0].tolist())

    def of_target(text: Text) -> tuple[int, ...]:
        if text.target is None or decoder is None:
            return ()
        read = shift_right(text.target.input_ids, decoder.start_token_id)
        return separators(read, target_separator_ids)

    return [
        AttentionText(
            text,
            separators(text.input_ids, separator_ids),
            Pooling(layer, sentence.pooling, text.first_pooled(sentence)),
            of_target(text),
        )
        for text in texts
    ]
