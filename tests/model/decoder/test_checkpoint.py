from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from model.checkpoint import load_checkpoint
from model.decoder.checkpoint import load_decoder, load_decoder_weights
from model.decoder.decoder import Decoder
from model.errors import CheckpointError
from tests.model.checkpoints import edit_weights
from tests.model.decoder.conftest import Pair

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
    with pytest.raises(CheckpointError) as caught:
        load_decoder(folder, config)
    message = str(caught.value)
    assert f"{folder} (decoder) does not fit its config: " in message
    assert "1 missing: layers.0.cross.query.bias" in message
    assert "1 unexpected: layers.0.own.encoder_attn.x.weight" in message
    assert "1 mis-shaped: layers.0.own.feed_forward.expand.bias (3,) instead of (28,)" in message
    assert "1 not finite: layers.0.own.feed_forward.contract.bias" in message
    assert "\n" not in message


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
