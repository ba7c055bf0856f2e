"""Small random encoder–decoders, written by transformers, and its results for pairs.

Encoders and decoders differ in depth; BART's and Marian's also differ in their number of heads.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerFast

from model.artifact.signature import MapKind
from model.numerics.comparison import Ids, TargetTensors
from tests.model.families.decoder_parity import Added
from tests.model.families.parity import model_of, randomized

WORDS = ["<s>", "<pad>", "</s>", "<unk>", *(f"w{n}" for n in range(56))]
PAIRS = [(9, 4), (1, 1), (3, 12), (17, 6)]
"""Numbers of tokens of sources and of their targets."""


_SIZES = {"vocab_size": len(WORDS), "d_model": 24, "pad_token_id": 1, "eos_token_id": 2}
_BART = _SIZES | {"max_position_embeddings": 48}
_FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bart": (
        *("Bart", "ForConditionalGeneration"),
        _BART
        | {"encoder_layers": 1, "encoder_ffn_dim": 40, "encoder_attention_heads": 2}
        | {"decoder_layers": 2, "decoder_ffn_dim": 32, "decoder_attention_heads": 3}
        | {"bos_token_id": 0, "decoder_start_token_id": 2},
    ),
    "marian": (
        *("Marian", "MTModel"),
        _BART
        | {"encoder_layers": 2, "encoder_ffn_dim": 32, "encoder_attention_heads": 3}
        | {"decoder_layers": 1, "decoder_ffn_dim": 40, "decoder_attention_heads": 2}
        | {"decoder_start_token_id": 1},
    ),
    "t5": (
        *("T5", "ForConditionalGeneration"),
        _SIZES
        | {"d_kv": 6, "d_ff": 40, "num_layers": 1, "num_decoder_layers": 2, "num_heads": 3}
        | {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}
        | {"feed_forward_proj": "gated-gelu", "decoder_start_token_id": 1},
    ),
}


def write_encoder_decoder(folder: Path, family: str) -> Path:
    """Write a checkpoint and its tokenizer."""
    name, task, fields = _FAMILIES[family]
    torch.manual_seed(0)
    model = randomized(model_of(name, task=task, **fields))
    with torch.no_grad():
        if family != "t5":
            model.final_logits_bias.normal_()
        for key, parameter in model.named_parameters():
            if key.endswith(
                ".q.weight"
            ):  # T5 does not divide scores, which would be all or nothing
                parameter.mul_(0.3)
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({w: n for n, w in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 2)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    ).save_pretrained(folder)
    return folder


def pairs(lengths: list[tuple[int, int]]) -> list[tuple[Ids, Ids]]:
    """Return random ids of sources and labels of their targets, without padding tokens."""
    rng = np.random.default_rng(3)
    return [(rng.integers(3, 60, s), rng.integers(3, 60, t)) for s, t in lengths]


@dataclass(frozen=True)
class Pair:
    """Results of transformers for a source and the labels of its target."""

    encoded: list[np.ndarray]
    """Hidden states of the encoder, `[S, H]` each."""
    encoder_maps: list[np.ndarray]
    """Maps of the encoder, `[N, S, S]` per layer."""
    hidden: list[np.ndarray]
    """Hidden states of the decoder, `[T, H]` each."""
    maps: np.ndarray
    """Maps of the decoder's self-attention, `[L_d, N_d, T, T]`."""
    cross_maps: np.ndarray
    """Maps of cross-attention, `[L_d, N_d, T, S]`."""
    logprobs: np.ndarray
    """Log-probabilities, `[T]`."""
    norms: np.ndarray
    """Norms ‖a · f‖ of self-attention `[L_d, N_d, T, T]`, by its value and output projections."""
    cross_norms: np.ndarray
    """Norms of cross-attention, likewise, `[L_d, N_d, T, S]`."""


@functools.cache
def _reference(checkpoint: Path) -> tuple[Any, Added]:
    model = AutoModelForSeq2SeqLM.from_pretrained(
        checkpoint, attn_implementation="eager", dtype=torch.float32
    ).eval()
    return model, Added(model)


def transformers_says(checkpoint: Path, source: Ids, labels: Ids) -> Pair:
    """Return the results of transformers for one pair alone, in float32."""
    model, added = _reference(checkpoint)
    with torch.inference_mode():
        found = model(
            input_ids=torch.from_numpy(source)[None],
            labels=torch.from_numpy(labels)[None],
            output_hidden_states=True,
            output_attentions=True,
        )

    def norms(kind: MapKind, maps: tuple[torch.Tensor, ...]) -> np.ndarray:
        """Return norms `[L_d, N_d, T, keys]`."""
        sizes = [added.each(n, kind, of.shape[1]).norm(dim=-1).T for n, of in enumerate(maps)]
        with torch.inference_mode():
            return (torch.cat(maps) * torch.stack(sizes)[:, :, None]).numpy()

    logprobs = found.logits[0].log_softmax(dim=-1).numpy()
    return Pair(
        *(
            [each[0].numpy() for each in every]
            for every in (
                found.encoder_hidden_states,
                found.encoder_attentions,
                found.decoder_hidden_states,
            )
        ),
        maps=torch.cat(found.decoder_attentions).numpy(),
        cross_maps=torch.cat(found.cross_attentions).numpy(),
        logprobs=logprobs[np.arange(len(labels)), labels],
        norms=norms("decoder", found.decoder_attentions),
        cross_norms=norms("cross", found.cross_attentions),
    )


def assert_equal(found: TargetTensors, expected: Pair) -> None:
    """Compare states and log-probabilities within 1e-4, maps within 1e-5; check causality."""
    for ours, theirs in zip(found.hidden, expected.hidden, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4 * max(1, np.abs(theirs).max()), rtol=0)
    np.testing.assert_allclose(found.maps, expected.maps, atol=1e-5, rtol=0, strict=True)
    np.testing.assert_allclose(
        found.cross_maps, expected.cross_maps, atol=1e-5, rtol=0, strict=True
    )
    np.testing.assert_allclose(found.logprobs, expected.logprobs, atol=1e-4, rtol=0, strict=True)
    assert not np.triu(found.maps, 1).any()
