from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from model.artifact.batch import pack
from model.artifact.pooling import l2_normalize, pool
from model.artifact.sentence import SentenceConfig
from model.checkpoint import load_checkpoint
from model.errors import ConfigError
from model.packing import PackedBatch
from model.tokenizer import load_tokenizer
from tests.model.checkpoints import edit_json

POSITIONS = 40
"""The size of the tiny checkpoint's position table."""
TEXTS = ["the cat.", "The CAT, the cat and THE cat " * 3, "q", ""]
PROMPT = "query the cat: "


def read(folder: Path) -> SentenceConfig:
    return SentenceConfig.from_checkpoint(folder, POSITIONS)


def embed(folder: Path, text: str, prompt: str = "") -> np.ndarray:
    """One text's vector by our own account of the folder."""
    sentence, encoder = read(folder), load_checkpoint(folder)
    tokenizer = load_tokenizer(folder, encoder.config, lowercase=sentence.lowercase)
    tokenizer.enable_truncation(sentence.max_length)
    encoding = tokenizer.encode(prompt + text)
    batch = pack([(encoding.ids, encoding.type_ids)])
    with torch.inference_mode():
        hidden = encoder(PackedBatch.of(batch))
    without_prompt = prompt and not sentence.include_prompt
    first = len(tokenizer.encode(prompt).ids) - 1 if without_prompt else 0
    vector = pool(hidden.hidden_states[-1][first:].numpy(), sentence.pooling)
    return l2_normalize(vector) if sentence.normalize else vector


def assert_equals_sentence_transformers(folder: Path) -> SentenceTransformer:
    theirs = SentenceTransformer(str(folder), device="cpu")
    ours = read(folder)
    assert ours.max_length == min(theirs.max_seq_length, POSITIONS)
    named = {name: prompt for name, prompt in ours.prompts.items() if prompt}
    assert named == {name: prompt for name, prompt in theirs.prompts.items() if prompt}
    for prompt in ("", PROMPT):
        expected = theirs.encode(TEXTS, prompt=prompt or None, batch_size=1)
        for text, vector in zip(TEXTS, expected, strict=True):
            np.testing.assert_allclose(embed(folder, text, prompt), vector, atol=2e-6, rtol=1e-5)
    return theirs


def save(checkpoint: Path, folder: Path, *modules: Any, **options: Any) -> Path:
    """A sentence-transformers folder, written by the library itself."""
    transformer = Transformer(str(checkpoint), max_seq_length=options.pop("max_seq_length", None))
    SentenceTransformer(modules=[transformer, *modules], device="cpu", **options).save(str(folder))
    return folder


def modules_of(*types: str) -> list[dict[str, Any]]:
    """The content of a `modules.json` of versions up to 5."""
    paths = ["", *(f"{i}_{kind}" for i, kind in enumerate(types[1:], start=1))]
    return [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(zip(types, paths, strict=True))
    ]


@pytest.fixture
def folder(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A folder as versions up to 5 wrote it: Transformer → mean pooling."""
    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / "sentence"))
    write_modules(folder, "Transformer", "Pooling")
    edit_json(
        folder / "1_Pooling" / "config.json",
        word_embedding_dimension=12,
        pooling_mode_cls_token=False,
        pooling_mode_mean_tokens=True,
        pooling_mode_max_tokens=False,
        pooling_mode_mean_sqrt_len_tokens=False,
    )
    edit_json(folder / "sentence_bert_config.json", max_seq_length=20, do_lower_case=False)
    return folder


def write_modules(folder: Path, *types: str) -> None:
    modules = modules_of(*types)
    (folder / "modules.json").write_text(json.dumps(modules))
    for module in modules:
        (folder / module["path"]).mkdir(exist_ok=True)


# ── what sentence-transformers does with the same folder ───────────────────────────────────


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "lasttoken"])
@pytest.mark.parametrize("normalize", [True, False], ids=["normalize", "as-is"])
@pytest.mark.parametrize("include_prompt", [True, False], ids=["with-prompt", "without-prompt"])
def test_what_the_library_saves_is_read(
    tiny_checkpoint: Path, tmp_path: Path, pooling: str, normalize: bool, include_prompt: bool
) -> None:
    modules = [Pooling(12, pooling, include_prompt=include_prompt)]
    modules += [Normalize()] if normalize else []
    folder = save(tiny_checkpoint, tmp_path / "saved", *modules, max_seq_length=17)
    assert_equals_sentence_transformers(folder)
    assert read(folder).max_length == 17


@pytest.mark.parametrize(
    ("flag", "pooling"),
    [
        ("pooling_mode_mean_tokens", "mean"),
        ("pooling_mode_cls_token", "cls"),
        ("pooling_mode_max_tokens", "max"),
        ("pooling_mode_lasttoken", "last"),
        (None, "mean"),
    ],
)
def test_boolean_pooling_keys_are_read(folder: Path, flag: str | None, pooling: str) -> None:
    changes = {"pooling_mode_mean_tokens": False} | ({flag: True} if flag else {})
    edit_json(folder / "1_Pooling" / "config.json", **changes)
    assert read(folder).pooling == pooling
    assert_equals_sentence_transformers(folder)


@pytest.mark.parametrize("mode", ["max", ["max"]], ids=str)
def test_pooling_mode_goes_before_the_boolean_keys(folder: Path, mode: Any) -> None:
    edit_json(folder / "1_Pooling" / "config.json", pooling_mode=mode)
    assert read(folder).pooling == "max"
    assert_equals_sentence_transformers(folder)


def test_a_prompt_may_be_left_out_of_the_pooling(folder: Path) -> None:
    edit_json(folder / "1_Pooling" / "config.json", include_prompt=False)
    assert read(folder).include_prompt is False
    assert_equals_sentence_transformers(folder)


def test_prompts_are_read(folder: Path) -> None:
    prompts = {"query": "query: ", "passage": "passage: ", "empty": "", "document": None}
    edit_json(folder / "config_sentence_transformers.json", prompts=prompts)
    assert_equals_sentence_transformers(folder)
    assert read(folder).prompts == prompts | {"document": ""}


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
        (30, 20, 30),
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
    assert_equals_sentence_transformers(folder)


def test_the_limit_of_old_tokenizers_has_another_name(folder: Path) -> None:
    (folder / "sentence_bert_config.json").unlink()
    edit_json(folder / "tokenizer_config.json", model_max_length=None, max_len=13)
    assert read(folder).max_length == 13
    assert_equals_sentence_transformers(folder)


def test_the_limit_never_exceeds_the_position_table(folder: Path) -> None:
    edit_json(folder / "sentence_bert_config.json", max_seq_length=POSITIONS + 1)
    assert read(folder).max_length == POSITIONS


@pytest.mark.parametrize("model_max_length", [15, NO_LIMIT, None])
def test_a_plain_transformers_folder_gets_the_defaults(
    folder: Path, model_max_length: int | None
) -> None:
    """Without modules.json the library reads none of its other files, and so do we."""
    (folder / "modules.json").unlink()
    edit_json(folder / "1_Pooling" / "config.json", pooling_mode="cls")
    edit_json(folder / "sentence_bert_config.json", max_seq_length=3, do_lower_case=True)
    edit_json(folder / "config_sentence_transformers.json", prompts={"query": "query: "})
    edit_json(folder / "tokenizer_config.json", model_max_length=model_max_length)
    expected = POSITIONS if model_max_length != 15 else 15
    assert read(folder) == SentenceConfig(pooling="mean", max_length=expected)
    assert_equals_sentence_transformers(folder)


def test_only_config_and_weights_are_enough(tmp_path: Path) -> None:
    assert read(tmp_path) == SentenceConfig(
        pooling="mean",
        normalize=False,
        max_length=POSITIONS,
        prompts={},
        include_prompt=True,
        lowercase=False,
    )


def test_the_default_model_is_read(minilm_checkpoint: Path) -> None:
    ours = SentenceConfig.from_checkpoint(minilm_checkpoint, 512)
    assert ours == SentenceConfig(pooling="mean", normalize=True, max_length=256)
    theirs = SentenceTransformer(str(minilm_checkpoint), device="cpu")
    assert theirs.max_seq_length == ours.max_length
    assert [type(module).__name__ for module in theirs][1:] == ["Pooling", "Normalize"]


# ── what is refused ────────────────────────────────────────────────────────────────────────


def refusal(folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert "http" not in message
    assert str(folder) in message
    return message


def test_another_module_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = save(tiny_checkpoint, tmp_path / "saved", Pooling(12), Dense(12, 5))
    assert "Transformer → Pooling → Dense are not supported" in refusal(folder)


@pytest.mark.parametrize(
    "types", [["Transformer", "Normalize"], ["Pooling", "Transformer"], ["CLIPModel"], []]
)
def test_another_order_of_modules_is_refused(folder: Path, types: list[str]) -> None:
    (folder / "modules.json").write_text(json.dumps(modules_of(*types) if types else []))
    assert "are not supported; Transformer → Pooling → Normalize are" in refusal(folder)


def test_a_class_from_elsewhere_is_refused(folder: Path) -> None:
    modules = modules_of("Transformer", "Pooling")
    modules[0]["type"] = "custom_st.Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    assert "custom_st.Transformer → Pooling are not supported" in refusal(folder)


def test_a_transformer_in_a_folder_of_its_own_is_refused(folder: Path) -> None:
    modules = modules_of("Transformer", "Pooling")
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    assert "must lie beside it" in refusal(folder)


@pytest.mark.parametrize("path", ["../sentence/1_Pooling", "1_Pooling/../1_Pooling", "absent"])
def test_a_pooling_module_elsewhere_is_refused(folder: Path, path: str) -> None:
    modules = modules_of("Transformer", "Pooling")
    modules[1]["path"] = path
    (folder / "modules.json").write_text(json.dumps(modules))
    assert f"names {path}, which holds no config.json" in refusal(folder)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"pooling_mode": "weightedmean"}, "weightedmean"),
        ({"pooling_mode": "mean_sqrt_len_tokens"}, "mean_sqrt_len_tokens"),
        ({"pooling_mode": ["mean", "max"]}, "mean + max"),
        ({"pooling_mode": []}, "pooling "),
        ({"pooling_mode": 3}, "pooling"),
        ({"pooling_mode_cls_token": True}, "mean + cls"),
        (
            {"pooling_mode_mean_tokens": False, "pooling_mode_weightedmean_tokens": True},
            "weightedmean",
        ),
    ],
    ids=str,
)
def test_another_pooling_is_refused(folder: Path, change: dict[str, Any], named: str) -> None:
    edit_json(folder / "1_Pooling" / "config.json", **change)
    message = refusal(folder)
    assert named in message
    assert "one of mean, cls, max, last is" in message


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("modules.json", "{", "modules.json is not readable JSON"),
        ("modules.json", "{}", "modules.json is not a list of modules"),
        ("modules.json", "[3]", "modules.json is not a list of modules"),
        ("1_Pooling/config.json", "[]", "1_Pooling/config.json does not hold a JSON object"),
        ("1_Pooling/config.json", '{"include_prompt": "perhaps"}', "include_prompt"),
        ("sentence_bert_config.json", "3", "sentence_bert_config.json does not hold"),
        ("sentence_bert_config.json", '{"max_seq_length": 0}', "max_length"),
        ("sentence_bert_config.json", '{"max_seq_length": -3}', "max_length"),
        ("sentence_bert_config.json", '{"max_seq_length": "many"}', "'many', not a number"),
        ("sentence_bert_config.json", '{"max_seq_length": 2.5}', "max_length"),
        ("sentence_bert_config.json", '{"max_seq_length": NaN}', "max_length"),
        ("sentence_bert_config.json", '{"do_lower_case": "perhaps"}', "lowercase"),
        ("config_sentence_transformers.json", '{"prompts": [1]}', "prompts"),
        ("config_sentence_transformers.json", '{"prompts": {"a": 1}}', "prompts"),
        ("tokenizer_config.json", "\x00", "tokenizer_config.json is not readable JSON"),
    ],
)
def test_a_damaged_file_is_refused(folder: Path, name: str, content: str, reason: str) -> None:
    (folder / name).write_text(content)
    assert reason in refusal(folder)
