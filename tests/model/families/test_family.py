"""Keys of a made-up family of checkpoints."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from model.families.family import WORDS, Family, split_together
from model.families.registry import parse_config

FAMILY = Family(
    config=parse_config,
    prefix="made.up.",
    outside=re.compile(r"^head\."),
    renames=((r"^block\.(\d+)\.", r"layers.\1."), (r"^layers\.(\d+)\.w$", r"layers.\1.weight")),
)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("made.up.block.3.w", "layers.3.weight"),  # one after the other
        ("block.3.w", "layers.3.weight"),
        ("made.up.block.12.bias", "layers.12.bias"),
        ("model.made.up.block.0.w", "layers.0.weight"),
        ("0.auto_model.block.0.w", "layers.0.weight"),
        ("madeXup.block.0.w", "madeXup.block.0.w"),
        ("head.weight", None),
        ("made.up.head.weight", None),
        ("block.0.head.weight", "layers.0.head.weight"),
    ],
)
def test_keys_lose_their_prefix_and_are_renamed_in_order(key: str, expected: str | None) -> None:
    assert FAMILY.encoder_key(key) == expected


def test_maps_that_are_kept_in_one_tensor_are_taken_apart() -> None:
    rows = torch.arange(6)[:, None]
    found = split_together("layers.3.attention.together.weight", rows)
    assert [(name, part.flatten().tolist()) for name, part in found.items()] == [
        ("layers.3.attention.query.weight", [0, 1]),
        ("layers.3.attention.key.weight", [2, 3]),
        ("layers.3.attention.value.weight", [4, 5]),
    ]
    gated = split_together("layers.3.feed_forward.together.bias", rows)
    assert [*gated] == ["layers.3.feed_forward.gate.bias", "layers.3.feed_forward.expand.bias"]
    assert split_together("final_norm.weight", rows) == {"final_norm.weight": rows}


def test_a_decoders_keys_are_renamed_and_its_layers_are_its_own() -> None:
    renames = ((r"\.look\.", ".cross."),)
    tied = ("encoder.words", "shared", "decoder.words")
    family = replace(FAMILY, decoder_renames=renames, tied_words=tied)
    keys = {
        "model.decoder.block.3.w": "layers.3.own.weight",
        "decoder.block.3.look.w": "layers.3.cross.w",
        "decoder.layers.0.cross_norm.bias": "layers.0.cross_norm.bias",
        "decoder.last.bias": "last.bias",
        "final_logits_bias": "output_bias",
        "lm_head.weight": "output.weight",
        "made.up.shared": WORDS,
    }
    others = {"decoder.head.w", "block.3.w", "encoder.words"}
    assert family.decoder_keys([*keys, *others]) == keys


def test_the_word_embedding_is_read_from_the_first_that_is_there() -> None:
    outside = re.compile("^(decoder|shared)|words$")
    tied = ("encoder.words", "shared", "decoder.words")
    family = replace(FAMILY, tied_words=tied, outside=outside)
    assert family.encoder_keys(["decoder.words", "shared", "encoder.words"]) == {
        "encoder.words": WORDS
    }
    assert family.encoder_keys(["decoder.words", "shared"]) == {"shared": WORDS}
    assert family.encoder_keys(["model.decoder.words"]) == {"model.decoder.words": WORDS}
    assert family.decoder_keys(["decoder.words", "shared"])["decoder.words"] == WORDS
    assert family.encoder_keys(["block.0.w"]) == {"block.0.w": "layers.0.weight"}
