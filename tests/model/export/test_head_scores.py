"""Scores of heads, bge-m3's maps, late interaction and pooled vectors, against transformers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from transformers import AutoModel, AutoTokenizer, PreTrainedModel

from model.artifact.manifest import VECTOR_MODULES, Artifact
from model.artifact.sentence import SentenceConfig
from model.artifact.vectors import CALIBRATION
from model.checkpoint import load_checkpoint
from model.errors import CheckpointError, ConfigError
from model.export.calibration import TEXTS
from model.export.loading import load_hybrid, load_modules
from model.export.samples import TextSamples
from model.export.tensors import calibration_vectors
from model.families.registry import read_config
from model.numerics.late_interaction import LateInteraction
from model.runtimes.pytorch import TorchEncoderHeads
from model.sources.files import pickled_files
from model.sources.recognition import check_recognised
from model.sources.sentence import read_sentence
from model.sources.task_files import task_kind
from model.tokenization.tokenizer import load_tokenizer
from tests.model.checkpoints import edit_json, edit_weights
from tests.model.families.parity import SIZES, VOCABULARY, model_of, saved
from tests.model.families.test_encoder_parity import GEMMA3, MODERNBERT, QWEN3, VERSION_3
from tests.model.hybrid_checkpoints import SIZE, write_hybrid
from tests.model.late_checkpoints import EXPANSION, WORDS, write_late, write_pylate, write_stanford

IDS = torch.randint(3, VOCABULARY, (1, 12), generator=torch.Generator().manual_seed(3))
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", SIZES),
    "modernbert": ("ModernBert", MODERNBERT),
    "qwen3": ("Qwen3", QWEN3),
    "gemma3": ("Gemma3Text", GEMMA3),
    "mpnet": ("MPNet", SIZES),
    "deberta_v2": ("DebertaV2", SIZES | VERSION_3),
}
RECORDED = ("bert", "modernbert", "qwen3", "gemma3")
"""Families whose attention is a function of queries and keys as they enter the score."""


def reference(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Any]]:
    """Return the output for `IDS`, and each layer's scaled queries and keys per head."""
    own = importlib.import_module(type(model).__module__)
    seen = []
    if hasattr(own, "eager_attention_forward"):
        eager = own.eager_attention_forward

        def recording(module: Any, query: Any, key: Any, *others: Any, **options: Any) -> Any:
            scaling = options.get("scaling") or query.shape[-1] ** -0.5
            seen.append((query[0] * scaling, key[0]))
            return eager(module, query, key, *others, **options)

        monkeypatch.setattr(own, "eager_attention_forward", recording)
    with torch.no_grad():
        output = model(input_ids=IDS, output_hidden_states=True, output_attentions=True)
    return output, seen


@pytest.mark.parametrize("name", MODELS)
def test_they_are_transformers_own(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The softmax of the scores over the allowed keys equals transformers' weights."""
    family, fields = MODELS[name]
    model = model_of(family, **fields)
    encoder = load_checkpoint(saved(model, tmp_path))
    output, seen = reference(model, monkeypatch)
    assert bool(seen) == (name in RECORDED)
    of = TorchEncoderHeads(encoder).head_scores
    p = encoder.config.head_size
    for layer, weights in enumerate(output.attentions):
        count = weights.shape[1]
        states = np.ascontiguousarray(output.hidden_states[layer][0].numpy())
        for heads in (list(range(count)), [count - 1, 0], [1]):
            found = of(states, layer, heads)
            wanted = weights[0, heads].numpy()
            masked = np.where(wanted > 0, found.scores, -np.inf)
            own = torch.softmax(torch.from_numpy(masked), -1).numpy()
            np.testing.assert_allclose(own, wanted, atol=2e-6, rtol=1e-4)
            if not seen:
                continue
            queries, keys = (each.numpy() for each in seen[layer])
            shared = [head * len(keys) // count for head in heads]
            scale = {"atol": 1e-5 * np.abs(queries).max() * p**0.5, "rtol": 1e-4}
            np.testing.assert_allclose(found.queries, queries[heads] * p**0.5, **scale)
            atol = 1e-5 * np.abs(keys).max()
            np.testing.assert_allclose(found.keys, keys[shared], atol=atol, rtol=1e-4)
            products = found.queries @ found.keys.transpose(0, 2, 1) / p**0.5
            atol = 1e-5 * np.abs(products).max()
            np.testing.assert_allclose(found.scores, products, atol=atol, rtol=1e-4)


def test_positions_add_to_the_products(tmp_path: Path) -> None:
    """With relative positions the scores are not only products of features."""
    encoder = load_checkpoint(saved(model_of("MPNet", **SIZES), tmp_path))
    states = np.random.default_rng(0).standard_normal((6, 24), np.float32)
    found = TorchEncoderHeads(encoder).head_scores(states, 0, [0])
    products = found.queries @ found.keys.transpose(0, 2, 1) / encoder.config.head_size**0.5
    assert np.abs(found.scores - products).max() > 0.01


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_hybrid(tmp_path / "model")


def load(checkpoint: Path) -> None:
    config = read_config(checkpoint)
    head = load_hybrid(checkpoint, load_tokenizer(checkpoint, config, lowercase=False), config)
    assert head.config.outputs == SIZE + 1
    assert head.config.unused_ids == (0, 1, 2, 3)


def test_both_maps_are_read(checkpoint: Path) -> None:
    assert task_kind(checkpoint) == "hybrid"
    names = [path.name for path in pickled_files(checkpoint)]
    assert names == ["colbert_linear.pt", "sparse_linear.pt"]
    load(checkpoint)
    check_recognised(checkpoint)
    with pytest.raises(CheckpointError, match=r"pickled weights alone \(colbert_linear.pt\)"):
        check_recognised(checkpoint, pickles=False)


def test_without_modules_the_dense_vector_is_the_first_tokens(checkpoint: Path) -> None:
    (checkpoint / "modules.json").unlink()
    sentence = read_sentence(checkpoint, 64, 12)
    assert (sentence.pooling, sentence.normalize) == ("cls", True)


def test_maps_that_do_not_fit_are_refused(checkpoint: Path) -> None:
    path = checkpoint / "sparse_linear.pt"
    torch.save({"weight": torch.ones(2, 12), "bias": torch.ones(2)}, path)
    with pytest.raises(CheckpointError, match=r"weight \(2, 12\) instead of \(1, 12\)"):
        load(checkpoint)
    torch.save({"weight": torch.ones(1, 12)}, path)
    with pytest.raises(CheckpointError, match="does not hold weight and bias of one linear map"):
        load(checkpoint)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"sparse_linear.pt is missing, beside colbert_linea"):
        load(checkpoint)


def late_of(folder: Path) -> LateInteraction:
    tokenizer = load_tokenizer(folder, read_config(folder), lowercase=False)
    _, head, _ = load_modules(folder, tokenizer)
    assert head is not None
    assert head.config.late is not None
    return head.config.late


def test_words_are_ids(tmp_path: Path) -> None:
    late = late_of(write_late(tmp_path / "model", skipped=[".", "!", "nothing", "[UNK]"]))
    assert late.skipped_ids == tuple(sorted(map(WORDS.index, (".", "!", "[UNK]"))))
    assert late.query_tokens == 12
    assert late.expansion is not None
    assert late.expansion.token_id == WORDS.index("[MASK]")
    assert (late.expansion.fixed, late.expansion.attended) == (True, False)


@pytest.mark.parametrize(
    ("write", "file", "changes", "part"),
    [
        (
            write_pylate,
            "config_sentence_transformers.json",
            {"query_length": 41},
            "longer than the",
        ),
        (
            write_late,
            "sentence_bert_config.json",
            {"query_length": 5},
            "query_length 5 is less than query_expansion's 12",
        ),
        (
            write_late,
            "sentence_bert_config.json",
            {"query_expansion": {**EXPANSION, "token": "no such"}},
            "needs a token that the tokenizer has, not 'no such'",
        ),
        (
            lambda path: write_late(path, "DebertaV2"),
            "sentence_bert_config.json",
            {},
            "without attention to it is not supported for deberta-v2",
        ),
        (write_late, "1_Dense/config.json", {"in_features": 7}, "sizes of its modules do not fit"),
    ],
)
def test_refusals(
    tmp_path: Path, write: Callable[[Path], Path], file: str, changes: Any, part: str
) -> None:
    folder = write(tmp_path / "model")
    edit_json(folder / file, **changes)
    with pytest.raises(ConfigError, match=part) as failed:
        late_of(folder)
    assert "\n" not in str(failed.value)


def test_a_projection_that_does_not_fit(tmp_path: Path) -> None:
    folder = write_stanford(tmp_path / "model")
    edit_weights(folder, **{"linear.weight": torch.zeros(7, 12)})
    with pytest.raises(CheckpointError, match=r"steps\.0\.linear\.weight \(7, 12\) instead of"):
        late_of(folder)


def test_an_artifact_records_the_vectors_of_all_calibration_texts(
    tiny_artifact: Artifact, tiny_checkpoint: Path
) -> None:
    found = load_file(tiny_artifact.path(VECTOR_MODULES))[CALIBRATION]
    sentence = tiny_artifact.manifest.sentence
    lines = TEXTS.read_text(encoding="utf-8").splitlines()
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    model = AutoModel.from_pretrained(tiny_checkpoint).eval()
    assert (len(found), sentence.pooling) == (len(lines), "mean")
    for line, vector in zip(lines, found, strict=True):
        ids = tokenizer(line, truncation=True, max_length=sentence.max_length, return_tensors="pt")
        with torch.no_grad():
            expected = model(**ids).last_hidden_state[0].mean(0)
        np.testing.assert_allclose(vector, expected, atol=1e-5)


def test_a_tokenizer_without_tokens_gives_no_vectors(
    tiny_artifact: Artifact, tiny_checkpoint: Path
) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_artifact.path("tokenizer.json")))
    tokenizer.encode_batch = lambda _: []  # type: ignore[method-assign]
    encoder = load_checkpoint(tiny_checkpoint)
    sentence = SentenceConfig(max_length=9)
    samples = TextSamples(tokenizer, encoder.config, sentence)
    found = calibration_vectors(encoder, samples, sentence, {})
    assert found.shape == (0, encoder.config.hidden_size)
