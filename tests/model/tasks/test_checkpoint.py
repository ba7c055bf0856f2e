"""Task heads from checkpoint folders: against sentence-transformers, and errors."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder, SparseEncoder
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from model.checkpoint import load_checkpoint
from model.errors import CheckpointError, ConfigError
from model.numerics.batch import pack
from model.numerics.task_head import Floats
from model.packing import PackedBatch
from model.sources.sentence import read_sentence
from model.tasks.checkpoint import load_task_head, load_task_weights, read_labels
from model.tasks.head import TaskHead, scores_of_text
from tests.model.checkpoints import edit_json, edit_weights
from tests.model.logit_checkpoints import PAIRS as QUERIES
from tests.model.logit_checkpoints import published, word_logits, write_cross_encoder
from tests.model.sentences import write_modules
from tests.model.task_checkpoints import write_sparse_checkpoint, write_task_checkpoint

PAIRS = [("the cat", "a b c."), ("the cat", "x y z the"), ("a", "")]
TEXTS = ["the cat . a b c", "x y", ""]


def load(folder: Path) -> TaskHead:
    head = load_task_head(folder, load_checkpoint(folder))
    assert isinstance(head, TaskHead)
    return head


def scores(folder: Path, inputs: list[Any]) -> list[Floats]:
    """Return the task head's outputs in PyTorch."""
    encoder, head = load_checkpoint(folder), load(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    found = []
    for each in inputs:
        encoding = tokenizer.encode(*([each] if isinstance(each, str) else each))
        batch = PackedBatch.of(pack([(encoding.ids, encoding.type_ids)]))
        with torch.inference_mode():
            found.append(scores_of_text(head, encoder(batch).hidden_states[-1]))
    return found


@pytest.mark.parametrize("saved", [False, True], ids=["transformers", "sentence-transformers"])
def test_a_cross_encoder(tmp_path: Path, saved: bool) -> None:
    folder = write_task_checkpoint(tmp_path / "a", num_labels=1)
    reference = CrossEncoder(str(folder), device="cpu")
    if saved:
        reference.save(str(folder := tmp_path / "b"))
    expected = reference.predict(PAIRS, activation_fn=torch.nn.Identity())
    np.testing.assert_allclose(np.concatenate(scores(folder, PAIRS)), expected, atol=1e-5)


def test_the_default_prompt_of_a_cross_encoder(tmp_path: Path) -> None:
    """The prompt precedes the first text of a pair."""
    prompted: dict[str, Any] = {"prompts": {"q": "the cat. "}, "default_prompt_name": "q"}
    inside = write_task_checkpoint(tmp_path / "a", num_labels=1)
    CrossEncoder(str(inside), device="cpu", **prompted).save(str(folder := tmp_path / "b"))
    sentence = read_sentence(folder, 40, 12)
    prompt = sentence.prompts[sentence.default_prompt_name or ""]
    reference = CrossEncoder(str(folder), device="cpu")
    expected = reference.predict(PAIRS, activation_fn=torch.nn.Identity())
    found = scores(folder, [(prompt + one, other) for one, other in PAIRS])
    np.testing.assert_allclose(np.concatenate(found), expected, atol=1e-5)
    edit_json(folder / "config_sentence_transformers.json", max_active_dims=64)
    with pytest.raises(ConfigError, match="max_active_dims is not supported"):
        read_sentence(folder, 40, 12)


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2"])
def test_a_reranker_of_another_causal_family(tmp_path: Path, family: str) -> None:
    """mxbai-rerank-v2 compares the words 1 and 0 of a Qwen2."""
    sizes = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 6}
    folder = write_task_checkpoint(tmp_path / "a", "ForCausalLM", family, **sizes)
    words = {"true_token_id": 7, "false_token_id": 9}
    kinds = ("Transformer", "sentence_transformers.cross_encoder.modules.LogitScore")
    write_modules(folder, *kinds, LogitScore=words)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode("the cat . a b c").ids
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0, -1]
    (found,) = scores(folder, ["the cat . a b c"])
    np.testing.assert_allclose(found, [logits[7] - logits[9]], atol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_a_reranker_by_logits(tmp_path: Path, tied: bool) -> None:
    """Its score is the difference of transformers' logits, or the first one."""
    folder = write_cross_encoder(tmp_path / "a", tie_word_embeddings=tied)
    texts = [published(*pair) for pair in QUERIES]
    no, yes = word_logits(folder, texts).T
    np.testing.assert_allclose(np.concatenate(scores(folder, texts)), yes - no, atol=1e-5)
    edit_json(folder / "1_LogitScore" / "config.json", false_token_id=None)
    np.testing.assert_allclose(np.concatenate(scores(folder, texts)), yes, atol=1e-5)
    edit_json(folder / "1_LogitScore" / "config.json", false_token_id=10**6)
    with pytest.raises(ConfigError, match="token id 1000000 is not in the vocabulary"):
        load(folder)


def test_word_logits_that_are_not_stored_are_refused(tmp_path: Path) -> None:
    folder = write_cross_encoder(tmp_path / "a")
    edit_json(folder / "config.json", tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is missing"):
        load(folder)
    encoder = load_checkpoint(folder)
    encoder.config = encoder.config.model_copy(update={"model_type": "bert"})
    with pytest.raises(ConfigError, match=r"LogitScore is supported for .*qwen3; not for bert"):
        load_task_head(folder, encoder)


@pytest.mark.parametrize(("pooling", "activation"), [("max", "relu"), ("sum", "log1p_relu")])
def test_a_sparse_encoder(tmp_path: Path, pooling: str, activation: str) -> None:
    folder = write_sparse_checkpoint(tmp_path / "a", "Bert", pooling, activation)
    encoder = SparseEncoder(str(folder), device="cpu")
    expected = encoder.encode(TEXTS, convert_to_sparse_tensor=False, convert_to_tensor=True)
    np.testing.assert_allclose(np.stack(scores(folder, TEXTS)), expected.numpy(), atol=1e-5)


def test_a_real_sparse_encoder(tmp_path: Path, small_checkpoint: Path) -> None:
    """Its norms have the keys of 2018, and its output map is its word embedding."""
    text = ["The animal didn't cross the street because it was too tired"]
    encoder = SparseEncoder(str(small_checkpoint), device="cpu")
    expected = encoder.encode(text, convert_to_sparse_tensor=False, convert_to_tensor=True)
    encoder.save(str(tmp_path / "saved"))
    folder = Path(shutil.copytree(small_checkpoint, tmp_path / "old"))
    for name in ("modules.json", "sentence_bert_config.json", "1_SpladePooling"):
        source = tmp_path / "saved" / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    (found,) = scores(folder, text)
    np.testing.assert_allclose(found, expected[0].numpy(), atol=1e-5)
    assert 5 < np.count_nonzero(found) < 3000


def test_a_decoder_of_its_own_is_used(tmp_path: Path) -> None:
    folder = write_sparse_checkpoint(tmp_path / "a")
    tied = load(folder).output.weight
    own = torch.randn_like(tied)
    edit_weights(folder, **{"cls.predictions.decoder.weight": own})
    assert torch.equal(load(folder).output.weight, own)
    assert torch.equal(tied, load_checkpoint(folder).embeddings.word.weight)


def test_a_folder_without_a_task_has_none(tiny_checkpoint: Path) -> None:
    assert load_task_head(tiny_checkpoint, load_checkpoint(tiny_checkpoint)) is None


def test_labels_are_transformers() -> None:
    assert read_labels({"id2label": {"1": "no", "0": "yes"}}) == ["yes", "no"]
    assert read_labels({"num_labels": 1}) == ["LABEL_0"]
    assert read_labels({}) == ["LABEL_0", "LABEL_1"]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"id2label": {"1": "a", "2": "b"}}, "id2label does not name the labels from 0 on"),
        ({"id2label": ["a"]}, "id2label does not name"),
        ({"num_labels": "two"}, "num_labels 'two' is not a number of labels"),
        ({"num_labels": 0}, "num_labels 0 is not"),
    ],
)
def test_labels_that_are_none_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_labels(fields)


@pytest.mark.parametrize(
    ("family", "config", "says"),
    [
        ("DebertaV2", {"pooler_hidden_act": "odd"}, "task head: activation: Input"),
        ("DebertaV2", {"pooler_hidden_act": 3}, "task head: activation: Input"),
        ("ModernBert", {"classifier_pooling": "last"}, "task head's pooling"),
    ],
)
def test_what_is_not_known_is_refused_by_its_name(
    tmp_path: Path, family: str, config: dict[str, Any], says: str
) -> None:
    folder = write_task_checkpoint(tmp_path, family=family)
    edit_json(folder / "config.json", **config)
    with pytest.raises(ConfigError, match=says):
        load(folder)


def test_a_family_without_a_layout_is_refused(tmp_path: Path) -> None:
    folder = write_task_checkpoint(tmp_path)
    encoder = load_checkpoint(folder)
    encoder.config = encoder.config.model_copy(update={"model_type": "gemma3_text"})
    with pytest.raises(
        ConfigError, match=r"sequence classification is supported for albert, .*gemma3_text"
    ):
        load_task_head(folder, encoder)


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder = write_task_checkpoint(tmp_path, num_labels=2)
    edit_weights(folder, **{"classifier.bias": torch.full((2,), torch.nan)})
    with pytest.raises(CheckpointError, match=r"1 not finite: output\.bias"):
        load(folder)
    edit_weights(folder, **{"classifier.bias": torch.zeros(3)})
    with pytest.raises(CheckpointError, match=r"output\.bias \(3,\) instead of \(2,\)"):
        load(folder)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["bert.pooler.dense.weight"]
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=r"missing: transform\.dense\.weight"):
        load(folder)


def test_weights_of_an_artifact(tmp_path: Path) -> None:
    head = load(write_task_checkpoint(tmp_path, num_labels=2))
    path = tmp_path / "task.safetensors"
    save_file(head.state_dict(), path)
    again = load_task_weights(path, head.config, 12)
    assert all(torch.equal(one, again.state_dict()[key]) for key, one in head.state_dict().items())
    save_file(head.state_dict() | {"more": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match="1 unexpected: more"):
        load_task_weights(path, head.config, 12)
    path.write_bytes(b"no")
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        load_task_weights(path, head.config, 12)
