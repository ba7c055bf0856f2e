"""Encoder–decoders, chat templates and OpenAI's token ids, against transformers."""

from __future__ import annotations

import shutil
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
from tokenizers import Tokenizer, models
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from model.artifact.manifest import TARGET_TOKENIZER, TOKENIZER
from model.artifact.sentence import PairTemplate, SentenceConfig
from model.errors import ArtifactError
from model.families.registry import parse_config, read_config
from model.tokenization.piece_tokenizer import read_ids
from model.tokenization.tokenizer import load_target_tokenizer, load_tokenizer
from service.errors import InputTooLong, Unprocessable
from service.inference.tokenization import truncation
from service.inference.tokenization.inputs import Cl100k, TokenIds
from service.inference.tokenization.tokenizer import (
    FileTokenizer,
    Limits,
    Options,
    TextTokenizer,
    shared_tokenizer,
)
from service.system.distribution import install_command
from tests.model.checkpoints import TINY
from tests.model.logit_checkpoints import AFTER, BEFORE, INSTRUCTION, PAIRS, published
from tests.model.logit_checkpoints import write_reranker as write
from tests.model.piece_folders import write_marian

TEXTS = ["the ship carries water", "", "The Straße isn't in the riverhouse", "<unk> </s> été мир"]
NAMED = Options(naming="targets[{}]", targets=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return Marian's files, which lack ids of some pieces, and the served tokenizers."""
    folder = write_marian(tmp_path_factory.mktemp("marian"), lacking=120)
    size = len(read_ids(folder / "vocab.json"))
    config = parse_config(TINY | {"model_type": "bert", "vocab_size": size})
    load_tokenizer(folder, config, lowercase=False).save(str(folder / "tokenizer.json"))
    target = load_target_tokenizer(folder, size, lowercase=False)
    assert target is not None
    target.save(str(folder / TARGET_TOKENIZER))
    return folder


@pytest.fixture(scope="module")
def ours(folder: Path) -> TextTokenizer:
    prompts = {"query": "the ship: "}
    sentence = SentenceConfig(max_length=64, prompts=prompts, default_prompt_name="query")
    limits = Limits(64, 200)
    return TextTokenizer(folder / TOKENIZER, sentence, limits, folder / TARGET_TOKENIZER)


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Recommended: pip install sacremoses")
        yield AutoTokenizer.from_pretrained(folder)


def test_each_side_has_its_own_ids_and_targets_no_prompt(ours: TextTokenizer, theirs: Any) -> None:
    found = ours.tokenize(TEXTS, Options(prompt_name=""))
    assert [text.input_ids.tolist() for text in found] == theirs(TEXTS)["input_ids"]
    targets = ours.tokenize(TEXTS, NAMED)
    expected = theirs(text_target=TEXTS)["input_ids"]
    assert [target.input_ids.tolist() for target in targets] == expected
    assert expected != theirs(TEXTS)["input_ids"]
    unknown = theirs.unk_token_id
    assert any(unknown in text.input_ids for text in (*found, *targets))
    assert [target.prompt_tokens for target in targets] == [0] * len(TEXTS)
    assert list(targets[0].special_tokens_mask)[-1] == 1


@pytest.mark.parametrize("direction", ["right", "left"])
def test_targets_are_cut_as_the_request_says(
    ours: TextTokenizer, theirs: Any, direction: Any
) -> None:
    text = "the water of the river that the ship carries"
    options = Options(truncate=True, direction=direction, max_tokens=5, targets=True)
    (target,) = ours.tokenize([text], options)
    whole = theirs(text_target=text)["input_ids"][:-1]
    kept = whole[:4] if direction == "right" else whole[-4:]
    assert target.input_ids.tolist() == [*kept, theirs.eos_token_id]
    assert target.truncated


def test_refusals_name_the_target(ours: TextTokenizer) -> None:
    with pytest.raises(InputTooLong, match=r"^targets\[1\] has 201 characters; at most 200"):
        ours.tokenize(["a", "x" * 201], NAMED)
    with pytest.raises(InputTooLong, match=r"^targets\[3\] has \d+ tokens; at most 4 fit"):
        ours.tokenize(TEXTS[2:], replace(NAMED, max_tokens=4), first=3)


def test_ids_beyond_the_vocabulary_are_not_the_models(ours: TextTokenizer, folder: Path) -> None:
    size = len(read_ids(folder / "vocab.json"))
    assert FileTokenizer(folder / TOKENIZER).size == size
    assert Tokenizer.from_file(str(folder / TOKENIZER)).get_vocab_size() > size
    with pytest.raises(Unprocessable, match=f"ids are 0 … {size - 1}"):
        ours.decode("ids", TokenIds((size,)), skip_special_tokens=False)
    (tokens,) = ours.all_tokens(TEXTS[:1], "", special_tokens=True)
    assert max(tokens.ids) < size


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (path := tmp_path / TOKENIZER).write_text("none")
    with pytest.raises(ArtifactError, match="cannot be read"):
        FileTokenizer(path)


@pytest.mark.parametrize(
    ("template", "closing"),
    [
        ("[CLS] $A [SEP]", ["[SEP]"]),
        ("$A [SEP]", ["[SEP]"]),
        ("[CLS] $A", []),
        ("[CLS] $A [SEP] <|end|>", ["[SEP]", "<|end|>"]),
        ("$A", []),
    ],
)
def test_what_closes_a_text_is_found_with_or_without_what_opens_it(
    template: str, closing: list[str], tmp_path: Path
) -> None:
    """BERT's, T5's and Marian's, an encoder's without an end, and mBART's."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(["[CLS]", "[SEP]", "<|end|>"])
    ids = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]", "<|end|>")]
    tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=ids)
    tokenizer.save(str(path := tmp_path / TOKENIZER))
    assert [tokenizer.id_to_token(token) for token in FileTokenizer(path).closing] == closing


def test_files_of_the_same_content_share_a_tokenizer_while_it_is_used(
    folder: Path, tmp_path: Path
) -> None:
    one, same, other = (tmp_path / name for name in ("one", "same", "other"))
    for copy in (one, same):  # with a line feed, so that no other test uses the same content
        copy.write_bytes((folder / TOKENIZER).read_bytes() + b"\n")
    shutil.copy(folder / TARGET_TOKENIZER, other)
    tokenizer = shared_tokenizer(one)
    assert shared_tokenizer(same) is tokenizer
    assert shared_tokenizer(other) is not tokenizer
    assert len(shared_tokenizer(other).whole.get_vocab()) != len(tokenizer.whole.get_vocab())
    with pytest.raises(ArtifactError, match="missing"):
        shared_tokenizer(tmp_path / "missing")
    gone = weakref.ref(tokenizer)
    del tokenizer
    assert gone() is None


BYTES = tiktoken.Encoding(
    "bytes",
    pat_str=r"\S+|\s+",
    mergeable_ranks={bytes([byte]): byte for byte in range(256)} | {b"th": 256, b"the": 257},
    special_tokens={"<|endoftext|>": 258},
)
"""A vocabulary of tiktoken's own making, as the real one is a download."""


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> Cl100k:
    asked: list[str] = []
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: asked.append(name) or BYTES)
    found = Cl100k()
    assert asked == ["cl100k_base"]
    return found


@pytest.mark.parametrize("text", ["the water", "naïve café 😀", " a\n\tb ", "東京"])
def test_ids_are_decoded_as_tiktoken_encoded_them(decoder: Cl100k, text: str) -> None:
    assert decoder.decode("input[0]", BYTES.encode(text)) == text


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        (BYTES.encode("😀")[:2], "begin or end within a character"),
        (BYTES.encode("😀")[2:], "begin or end within a character"),
        ([1000], "not of cl100k_base"),
        ([-1], "not of cl100k_base"),
        ([2**40], "not of cl100k_base"),
    ],
)
def test_ids_without_a_text_are_refused(decoder: Cl100k, ids: list[int], says: str) -> None:
    with pytest.raises(Unprocessable, match=rf"^input\[2\]: .*{says}"):
        decoder.decode("input[2]", ids)


def test_a_vocabulary_that_cannot_be_had_names_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> tiktoken.Encoding:
        raise ConnectionError(name)

    monkeypatch.setattr(tiktoken, "get_encoding", fail)
    with pytest.raises(ValueError, match=r"ConnectionError.*set TIKTOKEN_CACHE_DIR"):
        Cl100k()


def test_without_tiktoken_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.system.distribution.is_installed", lambda _: False)
    with pytest.raises(ValueError, match="--token-ids cl100k needs tiktoken") as refused:
        Cl100k()
    assert install_command("tiktoken") in str(refused.value)


BETWEEN = "\n<Document>: "
TEMPLATES = {
    name: PairTemplate(before=f"{BEFORE}{text}\n<Query>: ", between=BETWEEN, after=AFTER)
    for name, text in {"": INSTRUCTION, "news": "Find news"}.items()
}
LONG = "The cat sat on the mat, é no doubt. " * 30


@pytest.fixture(scope="module")
def template_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    template_folder = write(tmp_path_factory.mktemp("reranker"), num_hidden_layers=1)
    tokenizer = load_tokenizer(template_folder, read_config(template_folder), lowercase=False)
    tokenizer.save(str(template_folder / "served.json"))
    return template_folder


@pytest.fixture(scope="module")
def reference(template_folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(template_folder)


def served(
    template_folder: Path, max_tokens: int = 4096, default: str | None = None
) -> TextTokenizer:
    sentence = SentenceConfig(
        max_length=max_tokens,
        prompts={"news": "Find news"},
        default_prompt_name=default,
        pair_templates=TEMPLATES,
    )
    return TextTokenizer(template_folder / "served.json", sentence, Limits(max_tokens, 10**7))


@pytest.mark.parametrize(
    ("prompt_name", "default", "instruction"),
    [
        (None, None, INSTRUCTION),
        ("news", None, "Find news"),
        (None, "news", "Find news"),
        ("", "news", INSTRUCTION),
    ],
)
def test_ids_are_transformers_of_the_whole_text(
    template_folder: Path,
    reference: Any,
    prompt_name: str | None,
    default: str | None,
    instruction: str,
) -> None:
    texts = served(template_folder, default=default).tokenize(
        PAIRS, Options(prompt_name=prompt_name)
    )
    for pair, text in zip(PAIRS, texts, strict=True):
        whole = published(*pair, instruction)
        encoded = reference(whole, return_offsets_mapping=True)
        assert text.input_ids.tolist() == encoded["input_ids"]
        begin = [whole.index("<Query>: ") + 9, len(whole) - len(AFTER) - len(pair[1])]
        covered: tuple[set[int], set[int]] = (set(), set())
        for index, (start, end) in enumerate(encoded["offset_mapping"]):
            segment = int(text.segment_ids[index])
            inside = [
                start < begin[n] + len(pair[n]) and end > begin[n] and bool(pair[n]) for n in (0, 1)
            ]
            assert text.special_tokens_mask[index] == (not any(inside))
            assert segment == (start >= begin[0] + len(pair[0]))
            place = text.offsets[index]
            if any(inside):
                assert inside[segment]
                low, high = start - begin[segment], end - begin[segment]
                assert place == (max(low, 0), min(high, len(pair[segment])))
                covered[segment].update(range(*place))
            else:
                assert place == (0, 0)
        for own, found in zip(pair, covered, strict=True):
            assert {i for i, character in enumerate(own) if not character.isspace()} <= found


@pytest.mark.parametrize("repeats", [1, 400])
def test_a_document_is_cut_as_in_the_model_card(
    template_folder: Path, reference: Any, repeats: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cuts the tokens between the fixed ones; far too long documents are read in part."""
    monkeypatch.setattr(truncation, "MOST_CHARACTERS", 2**14)
    document = LONG * repeats
    before, instruct = BEFORE.split("<Instruct>")
    begin, end = (reference(text).input_ids for text in (before, AFTER))
    inner = f"<Instruct>{instruct}{INSTRUCTION}\n<Query>: is it?{BETWEEN}{document}"
    room = 300 - len(begin) - len(end)
    expected = [*begin, *reference(inner).input_ids[:room], *end]
    (text,) = served(template_folder, 300).tokenize([("is it?", document)], Options(truncate=True))
    assert text.input_ids.tolist() == expected
    assert text.truncated
    (left,) = served(template_folder, 300).tokenize(
        [("is it?", document)], Options(truncate=True, direction="left")
    )
    assert len(left.input_ids) == 300
    own = np.flatnonzero((left.segment_ids == 1) & ~np.array([*left.special_tokens_mask], bool))
    assert left.offsets[own[-1]][1] == len(document)
    assert left.tokens[own[0]] == text.tokens[own[0]] or left.offsets[own[0]][0] > 0


def test_a_pair_that_is_too_long_is_refused(template_folder: Path) -> None:
    whole = len(served(template_folder).tokenize([("a", "b")], Options())[0].input_ids)
    pairs = [("a", "b"), ("a", LONG)]
    with pytest.raises(InputTooLong, match=rf"^texts\[1\] has \d+ tokens; at most {whole} fit"):
        served(template_folder, whole).tokenize(pairs, Options(naming="texts[{}]"))
    with pytest.raises(InputTooLong, match="leave no room beside"):
        served(template_folder, 50).tokenize([("a", "b")], Options(truncate=True))
    with pytest.raises(Unprocessable, match="unknown prompt_name; this model names: news"):
        served(template_folder).tokenize([("a", "b")], Options(prompt_name="other"))


def test_a_text_alone_has_no_template(template_folder: Path, reference: Any) -> None:
    """/encode reads it as any model does, with a prompt before it."""
    texts = ["The cat sat", ("The cat", "sat")]
    alone, _ = served(template_folder).tokenize(texts, Options(prompt_name="news"))
    assert alone.input_ids.tolist() == reference("Find newsThe cat sat").input_ids
    assert alone.prompt_tokens > 0


def test_the_template_counts_in_what_a_request_may_take(template_folder: Path) -> None:
    tokenizer = served(template_folder)
    (text,) = tokenizer.tokenize([("", "")], Options())
    assert tokenizer.template_tokens >= len(text.input_ids)
    assert tokenizer.template_characters == len(published("", ""))
    assert not tokenizer.expects_prompt, "a template has an instruction without one"
