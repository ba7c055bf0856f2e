"""Our computation of a folder's vectors equals sentence-transformers'."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Dropout, LayerNorm, Pooling
from torch import nn
from transformers import T5Config, T5EncoderModel

from model.artifact.sentence import SentenceConfig
from model.artifact.vectors import TextVectors
from model.checkpoint import load_checkpoint
from model.errors import ConfigError
from model.export.module_tensors import module_tensors
from model.families.registry import read_decoder_config
from model.numerics.batch import pack
from model.numerics.pooling import pool
from model.packing import PackedBatch
from model.sources.files import transformer_folder
from model.sources.recognition import check_recognised
from model.sources.sentence import read_sentence
from model.tokenization.tokenizer import load_tokenizer
from tests.model.checkpoints import edit_json
from tests.model.families.parity import randomized
from tests.model.refusals import refused
from tests.model.sentences import write_modules
from tests.model.tokenizer_folders import VOCAB_SIZE, write_tokenizer_folder

POSITIONS = 40
"""Size of the tiny checkpoint's position table."""
HIDDEN = 12
TEXTS = ["the cat.", "The CAT, the cat and THE cat " * 3, "q", ""]
PROMPT = "query the cat: "
ALL_MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]


def read(folder: Path) -> SentenceConfig:
    return read_sentence(folder, POSITIONS, HIDDEN)


def embed(folder: Path, prompt: str | None = None, **options: Any) -> list[np.ndarray]:
    """Return the vectors of `TEXTS` by our own reading of the folder."""
    sentence, inside = read(folder), transformer_folder(folder)
    encoder = load_checkpoint(inside)
    tensors = module_tensors(folder, sentence.modules)
    vectors = TextVectors(sentence, HIDDEN, {name: t.numpy() for name, t in tensors.items()})
    if prompt is None:
        prompt = sentence.prompts.get(sentence.default_prompt_name or "", "")
    tokenizer = load_tokenizer(inside, encoder.config, lowercase=sentence.lowercase)
    tokenizer.enable_truncation(sentence.max_length)
    without_prompt = prompt and not sentence.include_prompt
    first = len(tokenizer.encode(prompt).ids) - 1 if without_prompt else 0
    pooled = []
    for text in TEXTS:
        encoding = tokenizer.encode(prompt + text)
        batch = pack([(encoding.ids, encoding.type_ids)])
        with torch.inference_mode():
            hidden = encoder(PackedBatch.of(batch)).hidden_states[-1].numpy()
        pooled.append(pool(hidden, sentence.pooling, min(first, len(hidden) - 1)))
    found = vectors.finish(pooled, **options)
    assert [vector.shape for vector in found] == [(vectors.kept(),)] * len(TEXTS)
    return found


def assert_equals_sentence_transformers(folder: Path, *prompts: str | None) -> SentenceTransformer:
    """Compare vectors without a prompt, and with each of these."""
    theirs = SentenceTransformer(str(folder), device="cpu")
    ours = read(folder)
    named = {name: prompt for name, prompt in ours.prompts.items() if prompt}
    assert named == {name: prompt for name, prompt in theirs.prompts.items() if prompt}
    for prompt in (None, *prompts):
        expected = theirs.encode(TEXTS, prompt=prompt, batch_size=1)
        np.testing.assert_allclose(embed(folder, prompt), expected, atol=2e-6, rtol=1e-5)
    return theirs


def save(checkpoint: Path, folder: Path, *modules: Any, **options: Any) -> Path:
    """Write a sentence-transformers folder with the library itself."""
    transformer = Transformer(str(checkpoint), max_seq_length=options.pop("max_seq_length", None))
    SentenceTransformer(modules=[transformer, *modules], device="cpu", **options).save(str(folder))
    return folder


def random(module: Any) -> Any:
    """Return the module with random parameters."""
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return module


@pytest.fixture
def folder(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """Write a folder in the format of versions up to 5: Transformer → mean pooling."""
    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / "sentence"))
    others = dict.fromkeys(("cls_token", "max_tokens", "mean_sqrt_len_tokens"), False)
    pooling = {f"pooling_mode_{flag}": on for flag, on in (others | {"mean_tokens": True}).items()}
    pooling |= {"word_embedding_dimension": 12}
    write_modules(folder, "Transformer", "Pooling", Pooling=pooling)
    edit_json(folder / "sentence_bert_config.json", max_seq_length=20, do_lower_case=False)
    return folder


@pytest.mark.parametrize("pooling", [*ALL_MODES, ("mean", "cls"), tuple(reversed(ALL_MODES))])
@pytest.mark.parametrize("include_prompt", [True, False], ids=["with-prompt", "without-prompt"])
def test_every_pooling_that_the_library_saves(
    tiny_checkpoint: Path, tmp_path: Path, pooling: Any, include_prompt: bool
) -> None:
    modules = [Pooling(12, pooling, include_prompt=include_prompt)]
    folder = save(tiny_checkpoint, tmp_path / "saved", *modules, max_seq_length=17)
    assert_equals_sentence_transformers(folder, "", PROMPT)
    assert read(folder).max_length == 17


def test_boolean_pooling_keys_have_an_order_of_their_own(folder: Path) -> None:
    flags = ("lasttoken", "mean_tokens", "weightedmean_tokens", "max_tokens", "cls_token")
    edit_json(folder / "1_Pooling" / "config.json", **{f"pooling_mode_{f}": True for f in flags})
    assert read(folder).pooling == ("cls", "max", "mean", "weightedmean", "last")
    assert_equals_sentence_transformers(folder)


@pytest.mark.parametrize("flag", ["cls_token", "max_tokens", "lasttoken", None])
def test_boolean_pooling_keys_are_read(folder: Path, flag: str | None) -> None:
    changes = {"pooling_mode_mean_tokens": False} | ({f"pooling_mode_{flag}": True} if flag else {})
    edit_json(folder / "1_Pooling" / "config.json", **changes)
    assert_equals_sentence_transformers(folder)


@pytest.mark.parametrize("mode", ["max", ["max"]], ids=str)
def test_pooling_mode_goes_before_the_boolean_keys(folder: Path, mode: Any) -> None:
    edit_json(folder / "1_Pooling" / "config.json", pooling_mode=mode)
    assert read(folder).pooling == "max"
    assert_equals_sentence_transformers(folder)


CHAINS: dict[str, Callable[[], list[Any]]] = {
    "normalize": lambda: [Normalize()],
    "twice": lambda: [Normalize(), Normalize(), Dropout(0.5)],
    "layer norm": lambda: [random(LayerNorm(12))],
    "dense": lambda: [random(Dense(12, 5))],
    "no bias": lambda: [random(Dense(12, 7, bias=False)), Normalize()],
    "same residual": lambda: [random(Dense(12, 12, use_residual=True))],
    "other residual": lambda: [random(Dense(12, 6, use_residual=True))],
    "dense last": lambda: [Normalize(), random(Dense(12, 5)), Dropout(0.1)],
    "many": lambda: [
        random(LayerNorm(12)),
        random(Dense(12, 9, activation_function=nn.GELU())),
        Normalize(),
        Dropout(0.3),
        random(Dense(9, 20, activation_function=nn.Identity())),
        random(LayerNorm(20)),
        Normalize(),
    ],
}


@pytest.mark.parametrize("chain", CHAINS)
def test_modules_apply_in_their_order(tiny_checkpoint: Path, tmp_path: Path, chain: str) -> None:
    folder = save(tiny_checkpoint, tmp_path / "saved", Pooling(12), *CHAINS[chain]())
    theirs = assert_equals_sentence_transformers(folder)
    assert read(folder).vector_size(HIDDEN) == theirs.get_embedding_dimension()


def test_a_dense_module_takes_several_poolings(tiny_checkpoint: Path, tmp_path: Path) -> None:
    modules = [Pooling(12, ("max", "mean")), random(Dense(24, 8))]
    folder = save(tiny_checkpoint, tmp_path / "saved", *modules)
    assert_equals_sentence_transformers(folder)
    sentence = read(folder)
    assert (sentence.vector_size(HIDDEN), sentence.vector_size(HIDDEN, "mean")) == (8, None)


def test_half_precision_weights_of_a_module_are_read(tiny_checkpoint: Path, tmp_path: Path) -> None:
    dense = random(Dense(12, 5)).to(torch.bfloat16)
    folder = save(tiny_checkpoint, tmp_path / "saved", Pooling(12), dense)
    assert_equals_sentence_transformers(folder)


@pytest.mark.parametrize("modules", [[], [Normalize()], [Dense(12, 9), Normalize()]], ids=str)
@pytest.mark.parametrize("truncate_dim", [5, 99])
def test_vectors_are_cut_after_the_last_module(
    tiny_checkpoint: Path, tmp_path: Path, modules: list[Any], truncate_dim: int
) -> None:
    options = {"truncate_dim": truncate_dim}
    folder = save(tiny_checkpoint, tmp_path / "saved", Pooling(12), *modules, **options)
    theirs = assert_equals_sentence_transformers(folder)
    unit = theirs.encode(TEXTS, batch_size=1, normalize_embeddings=True)
    np.testing.assert_allclose(embed(folder, normalize=True), unit, atol=2e-6)


def test_prompts_are_read(folder: Path) -> None:
    prompts = {"query": "query: ", "passage": "passage: ", "empty": "", "document": None}
    edit_json(folder / "config_sentence_transformers.json", prompts=prompts)
    assert_equals_sentence_transformers(folder, "", PROMPT)
    assert read(folder).prompts == prompts | {"document": ""}


@pytest.mark.parametrize("include_prompt", [True, False], ids=["with-prompt", "without-prompt"])
def test_the_default_prompt_is_the_librarys(
    tiny_checkpoint: Path, tmp_path: Path, include_prompt: bool
) -> None:
    folder = save(
        tiny_checkpoint,
        tmp_path / "saved",
        Pooling(12, include_prompt=include_prompt),
        prompts={"query": "the query: ", "passage": "a passage. "},
        default_prompt_name="passage",
    )
    theirs = assert_equals_sentence_transformers(folder, "", PROMPT)
    assert read(folder).default_prompt_name == theirs.default_prompt_name == "passage"


def test_a_default_prompt_that_no_file_words_is_empty(folder: Path) -> None:
    edit_json(folder / "config_sentence_transformers.json", default_prompt_name="query")
    assert_equals_sentence_transformers(folder)
    assert read(folder).default_prompt_name is None


@pytest.mark.parametrize("lowercase", [True, False])
def test_a_text_may_be_lower_cased_first(folder: Path, lowercase: bool) -> None:
    edit_json(folder / "tokenizer_config.json", do_lower_case=False)
    edit_json(folder / "sentence_bert_config.json", do_lower_case=lowercase)
    assert read(folder).lowercase is lowercase
    assert_equals_sentence_transformers(folder)


NO_LIMIT = 1000000000000000019884624838656


@pytest.mark.parametrize(
    ("max_seq_length", "model_max_length", "expected"),
    [
        (20, 30, 20),
        (30, NO_LIMIT, 30),
        (None, 25, 25),
        (None, NO_LIMIT, POSITIONS),
        (None, 1e30, POSITIONS),
        (None, None, POSITIONS),
        (None, 512, POSITIONS),
    ],
)
def test_the_limit_on_tokens(
    folder: Path, max_seq_length: int | None, model_max_length: Any, expected: int
) -> None:
    edit_json(folder / "sentence_bert_config.json", max_seq_length=max_seq_length)
    edit_json(folder / "tokenizer_config.json", model_max_length=model_max_length)
    assert read(folder).max_length == expected
    assert assert_equals_sentence_transformers(folder).max_seq_length == expected


def test_the_least_limit_holds(folder: Path) -> None:
    """The library uses its own file's limit, even if the tokenizer's is smaller."""
    edit_json(folder / "sentence_bert_config.json", max_seq_length=30)
    edit_json(folder / "tokenizer_config.json", model_max_length=25)
    assert read(folder).max_length == 25
    arguments = {"model_max_length": 18, "padding_side": "right"}
    edit_json(folder / "sentence_bert_config.json", tokenizer_args=arguments)
    assert read(folder).max_length == 18


def test_the_limit_of_old_tokenizers_has_another_name(folder: Path) -> None:
    (folder / "sentence_bert_config.json").unlink()
    edit_json(folder / "tokenizer_config.json", model_max_length=None, max_len=13)
    assert read(folder).max_length == 13
    assert_equals_sentence_transformers(folder)


@pytest.mark.parametrize("model_max_length", [15, NO_LIMIT, None])
def test_a_plain_transformers_folder_gets_the_defaults(
    folder: Path, model_max_length: int | None
) -> None:
    """Without modules.json, neither the library nor Headscope reads its other files."""
    (folder / "modules.json").unlink()
    edit_json(folder / "1_Pooling" / "config.json", pooling_mode="cls")
    edit_json(folder / "sentence_bert_config.json", max_seq_length=3, do_lower_case=True)
    edit_json(folder / "config_sentence_transformers.json", prompts={"query": "query: "})
    edit_json(folder / "tokenizer_config.json", model_max_length=model_max_length)
    expected = POSITIONS if model_max_length != 15 else 15
    assert read(folder) == SentenceConfig(pooling="mean", max_length=expected)
    assert_equals_sentence_transformers(folder)


def test_the_default_model_is_read(minilm_checkpoint: Path) -> None:
    ours = read_sentence(minilm_checkpoint, 512, 384)
    assert ours == SentenceConfig(pooling="mean", normalize=True, max_length=256)
    theirs = SentenceTransformer(str(minilm_checkpoint), device="cpu")
    assert theirs.max_seq_length == ours.max_length
    assert [type(module).__name__ for module in theirs][1:] == ["Pooling", "Normalize"]


def test_the_transformer_may_have_a_folder_of_its_own(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Versions up to 1 wrote it so."""
    folder = tmp_path / "old"
    shutil.copytree(tiny_checkpoint, folder / "0_Transformer")
    pooling = {"word_embedding_dimension": 12}
    write_modules(folder, "Transformer", "Pooling", first="0_Transformer", Pooling=pooling)
    edit_json(folder / "0_Transformer" / "sentence_roberta_config.json", max_seq_length=9)
    assert read(folder).max_length == 9
    assert_equals_sentence_transformers(folder)


@pytest.mark.parametrize("where", ["config.json", "config_sentence_transformers.json"])
def test_dimensions_to_cut_to_are_read(folder: Path, where: str) -> None:
    edit_json(folder / where, matryoshka_dims=[8, 4])
    edit_json(folder / "config_sentence_transformers.json", similarity_fn_name="dot")
    sentence = read(folder)
    assert (sentence.matryoshka_dims, sentence.similarity_fn_name) == ((8, 4), "dot")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("modules.json", "{", "modules.json is not readable JSON"),
        ("1_Pooling/config.json", '{"include_prompt": "perhaps"}', "include_prompt"),
        ("sentence_bert_config.json", '{"max_seq_length": 0}', "max_length"),
        ("sentence_bert_config.json", '{"max_seq_length": -3}', "max_length"),
        ("sentence_bert_config.json", '{"max_seq_length": "many"}', "'many', not a number"),
        ("sentence_bert_config.json", '{"max_seq_length": 2.5}', "max_length"),
        ("sentence_bert_config.json", '{"max_seq_length": NaN}', "nan, not a number"),
        ("sentence_bert_config.json", '{"do_lower_case": "perhaps"}', "lowercase"),
        ("config_sentence_transformers.json", '{"prompts": {"a": 1}}', "prompts"),
        ("config_sentence_transformers.json", '{"truncate_dim": 0}', "truncate_dim"),
        ("config_sentence_transformers.json", '{"truncate_dim": "all"}', "truncate_dim"),
        ("config_sentence_transformers.json", '{"matryoshka_dims": 8}', "matryoshka_dims"),
        (
            "config_sentence_transformers.json",
            '{"similarity_fn_name": "maxsim"}',
            "'maxsim' needs a vector per token",
        ),
        ("tokenizer_config.json", "\x00", "tokenizer_config.json is not readable JSON"),
    ],
)
def test_a_damaged_file_is_refused(folder: Path, name: str, content: str, reason: str) -> None:
    (folder / name).write_text(content)
    message = refused(ConfigError, folder, read, folder)
    assert reason in message
    assert "http" not in message


def test_modules_whose_sizes_do_not_fit_are_refused(folder: Path) -> None:
    write_modules(folder, "Transformer", "Pooling", "LayerNorm", LayerNorm={"dimension": 13})
    with pytest.raises(ConfigError, match=r"do not fit one another: pooling gives 12 features$"):
        read(folder)


def test_sentence_t5_has_the_vectors_of_sentence_transformers(tmp_path: Path) -> None:
    """Ni et al. 2022, https://arxiv.org/abs/2108.08877: an encoder without its decoder."""
    checkpoint = write_tokenizer_folder(tmp_path / "t5", "T5Tokenizer")
    config = T5Config(
        vocab_size=VOCAB_SIZE, d_model=HIDDEN, d_kv=5, d_ff=20, num_layers=2, num_heads=2
    )
    torch.manual_seed(0)
    randomized(T5EncoderModel(config)).save_pretrained(checkpoint)
    dense = random(Dense(HIDDEN, 8, bias=False, activation_function=nn.Identity()))
    modules = (Pooling(HIDDEN, "mean"), dense, Normalize())
    folder = save(checkpoint, tmp_path / "saved", *modules, max_seq_length=20)
    check_recognised(folder)
    assert read_decoder_config(transformer_folder(folder)) is None
    assert read(folder).pooling == "mean"
    assert_equals_sentence_transformers(folder, "a prompt: ")
