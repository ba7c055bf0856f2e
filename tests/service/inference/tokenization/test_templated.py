"""Pairs in a chat template: ids against transformers, offsets and truncation by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from model.artifact.sentence import SentenceConfig
from model.families.registry import read_config
from model.numerics.pair_template import PairTemplate
from model.tokenization.tokenizer import load_tokenizer
from service.errors import InputTooLong, Unprocessable
from service.inference.tokenization.tokenizer import Limits, Options, TextTokenizer
from tests.model.logit_checkpoints import AFTER, BEFORE, INSTRUCTION, PAIRS, published
from tests.model.logit_checkpoints import write_reranker as write

BETWEEN = "\n<Document>: "
TEMPLATES = {
    name: PairTemplate(before=f"{BEFORE}{text}\n<Query>: ", between=BETWEEN, after=AFTER)
    for name, text in {"": INSTRUCTION, "news": "Find news"}.items()
}
LONG = "The cat sat on the mat, é no doubt. " * 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write(tmp_path_factory.mktemp("reranker"), num_hidden_layers=1)
    tokenizer = load_tokenizer(folder, read_config(folder), lowercase=False)
    tokenizer.save(str(folder / "served.json"))
    return folder


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


def served(folder: Path, max_tokens: int = 4096, default: str | None = None) -> TextTokenizer:
    sentence = SentenceConfig(
        max_length=max_tokens,
        prompts={"news": "Find news"},
        default_prompt_name=default,
        pair_templates=TEMPLATES,
    )
    return TextTokenizer(folder / "served.json", sentence, Limits(max_tokens, 10**7))


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
    folder: Path, reference: Any, prompt_name: str | None, default: str | None, instruction: str
) -> None:
    texts = served(folder, default=default).tokenize(PAIRS, Options(prompt_name=prompt_name))
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
    folder: Path, reference: Any, repeats: int, limit_characters: Callable[[int], None]
) -> None:
    """It cuts the tokens between the fixed ones; far too long documents are read in part."""
    limit_characters(2**14)
    document = LONG * repeats
    before, instruct = BEFORE.split("<Instruct>")
    begin, end = (reference(text).input_ids for text in (before, AFTER))
    inner = f"<Instruct>{instruct}{INSTRUCTION}\n<Query>: is it?{BETWEEN}{document}"
    room = 300 - len(begin) - len(end)
    expected = [*begin, *reference(inner).input_ids[:room], *end]
    (text,) = served(folder, 300).tokenize([("is it?", document)], Options(truncate=True))
    assert text.input_ids.tolist() == expected
    assert text.truncated
    (left,) = served(folder, 300).tokenize(
        [("is it?", document)], Options(truncate=True, direction="left")
    )
    assert len(left.input_ids) == 300
    own = np.flatnonzero((left.segment_ids == 1) & ~np.array([*left.special_tokens_mask], bool))
    assert left.offsets[own[-1]][1] == len(document)
    assert left.tokens[own[0]] == text.tokens[own[0]] or left.offsets[own[0]][0] > 0


def test_a_pair_that_is_too_long_is_refused(folder: Path) -> None:
    whole = len(served(folder).tokenize([("a", "b")], Options())[0].input_ids)
    pairs = [("a", "b"), ("a", LONG)]
    with pytest.raises(InputTooLong, match=rf"^texts\[1\] has \d+ tokens; at most {whole} fit"):
        served(folder, whole).tokenize(pairs, Options(naming="texts[{}]"))
    with pytest.raises(InputTooLong, match="leave no room beside"):
        served(folder, 50).tokenize([("a", "b")], Options(truncate=True))
    with pytest.raises(Unprocessable, match="unknown prompt_name; this model names: news"):
        served(folder).tokenize([("a", "b")], Options(prompt_name="other"))


def test_a_text_alone_has_no_template(folder: Path, reference: Any) -> None:
    """/encode reads it as any model does, with a prompt before it."""
    texts = ["The cat sat", ("The cat", "sat")]
    alone, _ = served(folder).tokenize(texts, Options(prompt_name="news"))
    assert alone.input_ids.tolist() == reference("Find newsThe cat sat").input_ids
    assert alone.prompt_tokens > 0


def test_a_template_has_an_instruction_without_a_prompt(folder: Path) -> None:
    assert not served(folder).lacks_prompt(Options())


def test_the_template_counts_in_what_a_request_may_take(folder: Path) -> None:
    tokenizer = served(folder)
    (text,) = tokenizer.tokenize([("", "")], Options())
    assert tokenizer.template_tokens >= len(text.input_ids)
    assert tokenizer.template_characters == len(published("", ""))
