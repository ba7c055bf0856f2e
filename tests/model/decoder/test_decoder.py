from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from model.attention import long_texts
from model.checkpoint import load_checkpoint
from model.config.decoder import DecoderConfig
from model.decoder.decoder import Decoder, load_decoder, load_decoder_weights
from model.decoder.layers import CrossAttention, cross_rule
from model.errors import CheckpointError
from model.families.registry import parse_decoder_config
from tests.model.checkpoints import edit_weights
from tests.model.decoder.conftest import Pair
from tests.model.families.decoder_parity import SIZES, decode, packed, targets
from tests.model.refusals import refused

END = 2


def texts(*lengths: tuple[int, int]) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(4)
    ids = [[torch.randint(3, 50, (n,), generator=generator) for n in pair] for pair in lengths]
    return [(source, labels) for source, labels in ids]


def reference(model: Any, source: Tensor, labels: Tensor) -> Any:
    with torch.no_grad():
        return model(
            input_ids=source[None],
            labels=labels[None],
            output_hidden_states=True,
            output_attentions=True,
        )


def close(found: Tensor, expected: Tensor) -> None:
    atol = 1e-5 * max(1.0, expected.abs().max().item())
    torch.testing.assert_close(found, expected, atol=atol, rtol=0)


def test_an_empty_source_and_a_target_of_one_token(pair: Pair) -> None:
    """An empty text consists of its end token."""
    model, encoder, decoder, _ = pair
    end = torch.tensor([END])
    both = [(end, end), *texts((7, 5))]
    with torch.no_grad():
        found = decode(encoder, decoder, both)
    expected = reference(model, end, end)
    close(found.hidden_states[-1][:1], expected.decoder_hidden_states[-1][0])
    for maps in (found.attentions, found.cross_attentions):
        assert all((each[0, :, 0, :1] == 1).all() for each in maps)
    after = reference(model, *both[1])
    close(found.hidden_states[-1][1:], after.decoder_hidden_states[-1][0])


@pytest.mark.parametrize("lengths", [((4, 0),), ((4, 0), (3, 0)), ((4, 3), (5, 0), (2, 6))])
def test_an_empty_target_has_no_rows(pair: Pair, lengths: tuple[tuple[int, int], ...]) -> None:
    model, encoder, decoder, _ = pair
    both = texts(*lengths)
    with torch.no_grad():
        found = decode(encoder, decoder, both)
        labels = torch.cat([labels for _, labels in both])
        logprobs = decoder.logprobs(found.hidden_states[-1], labels)
    tokens, longest = sum(t for _, t in lengths), max(t for _, t in lengths)
    assert all(states.shape[0] == tokens for states in found.hidden_states)
    assert found.cross_attentions[0].shape[2] == longest
    assert logprobs.shape == (tokens,)
    start = 0
    for source, each in both:
        if len(each):
            expected = reference(model, source, each).decoder_hidden_states[-1][0]
            close(found.hidden_states[-1][start : start + len(each)], expected)
        start += len(each)


@pytest.mark.parametrize("kind", ["self", "cross"])
def test_an_ablated_head_gives_nothing(pair: Pair, kind: str) -> None:
    """The reference is transformers with zeros in the head's columns of the output projection."""
    model, encoder, decoder, _ = pair
    (source, labels), *_ = both = texts((9, 6), (3, 8))
    layers, heads = decoder.config.layers.num_hidden_layers, 3
    own, cross = torch.ones(2, layers, heads), torch.ones(2, layers, heads)
    (own if kind == "self" else cross)[0, 1, 2] = 0
    with torch.no_grad():
        read = packed([each for each, _ in both])
        encoded = encoder(read).hidden_states[-1]
        shifted = targets(decoder, [each for _, each in both])
        found = decoder(shifted, read, encoded, own, cross)
        every = decoder(shifted, read, encoded)
    ablated: Any = copy.deepcopy(model)
    if hasattr(ablated, "model"):
        layer = ablated.model.decoder.layers[1]
        output = (layer.self_attn if kind == "self" else layer.encoder_attn).out_proj
    else:
        parts = ablated.decoder.block[1].layer
        output = parts[0].SelfAttention.o if kind == "self" else parts[1].EncDecAttention.o
    size = output.weight.shape[1] // heads
    with torch.no_grad():
        output.weight[:, 2 * size :] = 0
    expected = reference(ablated, source, labels).decoder_hidden_states[-1][0]
    close(found.hidden_states[-1][:6], expected)
    assert torch.equal(found.hidden_states[-1][6:], every.hidden_states[-1][6:])
    assert not torch.allclose(found.hidden_states[-1][:6], every.hidden_states[-1][:6])
    assert found.attentions == found.cross_attentions == ()


def test_relative_positions_may_be_computed_beforehand(pair: Pair) -> None:
    _, encoder, decoder, _ = pair
    source, labels = texts((5, 4))[0]
    with torch.no_grad():
        read, shifted = packed([source]), targets(decoder, [labels])
        encoded = encoder(read).hidden_states[-1]
        relative = decoder.relative_parameters()
        found = decoder(shifted, read, encoded, relative=relative).hidden_states[-1]
        assert torch.equal(found, decoder(shifted, read, encoded).hidden_states[-1])


WEIGHTS = "model.safetensors"
WORDS = "model.shared.weight"
TIED = ("lm_head", "model.encoder.embed_tokens", "model.decoder.embed_tokens")


@pytest.fixture
def folder(bart: Pair, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bart[3], tmp_path / "checkpoint"))


def loaded(folder: Path) -> Decoder:
    decoder = load_decoder(folder, load_checkpoint(folder).config)
    assert decoder is not None
    return decoder


def change(folder: Path, *gone: str, **added: torch.Tensor) -> None:
    tensors = load_file(folder / WEIGHTS)
    kept = {key: tensor for key, tensor in tensors.items() if key not in gone}
    save_file(kept | added, folder / WEIGHTS, metadata={"format": "pt"})


@pytest.mark.parametrize("names", [TIED[:1], TIED[1:2], TIED[2:], TIED, (*TIED, "model.shared")])
def test_any_of_the_tied_weights_will_do(folder: Path, bart: Pair, names: tuple[str, ...]) -> None:
    words = load_file(folder / WEIGHTS)[WORDS]
    change(folder, WORDS, **{f"{name}.weight": words.clone() for name in names})
    decoder, encoder = loaded(folder), load_checkpoint(folder)
    assert decoder.config == bart[2].config
    assert torch.equal(decoder.embeddings.word.weight, words)
    assert torch.equal(encoder.embeddings.word.weight, words)


def test_the_word_embeddings_may_differ(folder: Path) -> None:
    """Each half uses its own embedding rather than the shared one, as in transformers."""
    words = load_file(folder / WEIGHTS)[WORDS]
    own = {f"{name}.weight": words + n for n, name in enumerate(TIED, 1)}
    edit_weights(folder, **own)
    decoder, encoder = loaded(folder), load_checkpoint(folder)
    assert torch.equal(encoder.embeddings.word.weight, words + 2)
    assert torch.equal(decoder.embeddings.word.weight, words + 3)
    assert decoder.output is not None
    assert torch.equal(decoder.output.weight, words + 1)
    assert not decoder.config.tied_output


def test_a_bias_that_is_missing_is_zero(folder: Path) -> None:
    assert loaded(folder).state_dict()["output_bias"].any()
    change(folder, "final_logits_bias")
    assert not loaded(folder).state_dict()["output_bias"].any()


def test_all_that_does_not_fit_is_told_together(folder: Path) -> None:
    layer = "model.decoder.layers.0."
    change(
        folder,
        f"{layer}encoder_attn.q_proj.bias",
        **{
            f"{layer}encoder_attn.x.weight": torch.ones(2),
            f"{layer}fc1.bias": torch.ones(3),
            f"{layer}fc2.bias": torch.full((24,), torch.nan),
        },
    )
    config = load_checkpoint(folder).config
    message = refused(CheckpointError, folder, load_decoder, folder, config)
    assert f"{folder} (decoder) does not fit its config: " in message
    assert "1 missing: layers.0.cross.query.bias" in message
    assert "1 unexpected: layers.0.cross.x.weight" in message
    assert "1 mis-shaped: layers.0.own.feed_forward.expand.bias (3,) instead of (28,)" in message
    assert "1 not finite: layers.0.own.feed_forward.contract.bias" in message


def test_a_checkpoint_of_an_encoder_has_none(tiny_checkpoint: Path) -> None:
    assert load_decoder(tiny_checkpoint, load_checkpoint(tiny_checkpoint).config) is None


def test_its_weights_come_back(pair: Pair, tmp_path: Path) -> None:
    decoder = pair[2]
    save_file(decoder.state_dict(), tmp_path / "decoder.safetensors")
    again = load_decoder_weights(tmp_path / "decoder.safetensors", decoder.config)
    found, expected = again.state_dict(), decoder.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    assert not any(each.requires_grad for each in again.parameters())


def config_of(**changes: object) -> DecoderConfig:
    config = parse_decoder_config({"model_type": "bart", **SIZES, **changes})
    assert config is not None
    return config


@pytest.mark.parametrize("at_once", [1024, 5])
def test_it_equals_torchs(at_once: int) -> None:
    """PyTorch's own module has the same parameters and gets one pair at a time; also in chunks."""
    torch.manual_seed(0)
    config = config_of()
    with patch.object(long_texts, "QUERIES_AT_ONCE", at_once):
        ours = CrossAttention(config, cross_rule(config))
    theirs = torch.nn.MultiheadAttention(24, 3, batch_first=True)
    projections = (ours.query, ours.key, ours.value)
    for each in (*projections, ours.output):
        torch.nn.init.normal_(each.weight, std=0.5)
        torch.nn.init.normal_(each.bias)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([each.weight for each in projections]))
        theirs.in_proj_bias.copy_(torch.cat([each.bias for each in projections]))
        theirs.out_proj.load_state_dict(ours.output.state_dict())
    lengths = ((4, 7), (11, 3), (1, 1))
    target = packed([torch.zeros(t, dtype=torch.long) for t, _ in lengths])
    source = packed([torch.zeros(s, dtype=torch.long) for _, s in lengths])
    queries, encoded = torch.randn(16, 24), torch.randn(11, 24)
    with torch.no_grad():
        found = ours.attend(queries, target, encoded, source, None)
        maps = ours.maps(queries, target, encoded, source)
        row_t = row_s = 0
        for row, (t, s) in enumerate(lengths):
            of_target = queries[None, row_t : row_t + t]
            of_source = encoded[None, row_s : row_s + s]
            expected, weights = theirs(of_target, of_source, of_source, average_attn_weights=False)
            torch.testing.assert_close(found[row_t : row_t + t], expected[0], atol=1e-5, rtol=0)
            torch.testing.assert_close(maps[row, :, :t, :s], weights[0], atol=1e-6, rtol=0)
            row_t, row_s = row_t + t, row_s + s


def test_scores_and_normalizers_are_the_encoders() -> None:
    config = config_of(attention_score="bilinear", attention_normalizer="sparsemax")
    rule = cross_rule(config)
    assert (rule.score, rule.normalizer, rule.causal) == ("bilinear", "sparsemax", False)
    names = CrossAttention(config, rule).head_parameters()
    assert {name: each.shape[0] for name, each in names.items()} == dict.fromkeys(names, 3)
    assert {"score_weight", "query_bias"} <= names.keys()
