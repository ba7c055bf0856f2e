"""Tokens, offsets, limits and given ids, against transformers on the same checkpoint."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tokenizers import Encoding, Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer

from model.artifact.manifest import TOKENIZER, Artifact
from model.artifact.sentence import SentenceConfig
from model.config.encoder import EncoderConfig
from model.tokenization.tokenizer import load_tokenizer
from service.errors import InputTooLong, Unprocessable
from service.inference.tokenization import truncation
from service.inference.tokenization.inputs import Input, TokenIds
from service.inference.tokenization.text import Text, TextTokens
from service.inference.tokenization.tokenizer import FileTokenizer, Limits, Options, TextTokenizer
from tests.model.checkpoints import VOCABULARY, write_tokenizer
from tests.model.texts import TEXTS as CORPUS
from tests.model.tokenizer_folders import CLASSES, VOCAB_SIZE, write_tokenizer_folder
from tests.model.tower_checkpoints import write_clip_tokenizer
from tests.service.inference.tokenization.test_truncation import byte_pairs

TEXTS: list[Input] = [
    "The animal didn't cross the street because it was too tired",
    "",
    " ",
    "a",
    "\0 nul and \x07 bell\tand\r\nline ends",
    "a literal [SEP] and [CLS] and [MASK] in a text, [PAD]",
    "zero\u200bwidth, family 👩‍👩‍👧‍👦, right-to-left \u202eoverride\u202c, עברית",
    "東京は日本の首都です",
    "Ünïcödé naïve café, e\u0301 combining, ﬁ ligature, İstanbul",
    "supercalifragilisticexpialidocious " * 3,
    "x" * 300,
    "1234567890 " * 40,
    "\u00a0no-break\u2028separator\ufeffbom",
    ("How tall is it?", "It is 300 metres tall."),
    ("", "only the second"),
    ("only the first", ""),
    ("", ""),
    ("short", "long " * 120),
    ("long " * 120, "short"),
    ("both are long " * 40, "and so is this one " * 40),
    ("[SEP]", "[SEP]"),
]


@pytest.fixture(scope="module")
def reference(small_checkpoint: Path) -> Any:
    return AutoTokenizer.from_pretrained(small_checkpoint)


def tokenizer(artifact: Artifact, max_tokens: int = 512, max_characters: int = 10**5) -> Any:
    limits = Limits(max_tokens, max_characters)
    return TextTokenizer(artifact.path(TOKENIZER), artifact.manifest.sentence, limits)


def expected(reference: Any, text: Input, max_tokens: int, side: str) -> dict[str, list[Any]]:
    reference.truncation_side = side
    options = {"truncation": "longest_first", "max_length": max_tokens}
    # a list of one: alone, transformers takes an empty second segment for none
    options |= {"return_offsets_mapping": True, "return_special_tokens_mask": True}
    encoded = reference([text], **options)
    return {name: values[0] for name, values in encoded.items()}


def assert_equal(found: Text, wanted: dict[str, list[Any]], reference: Any) -> None:
    assert found.input_ids.tolist() == wanted["input_ids"]
    assert found.segment_ids.tolist() == wanted["token_type_ids"]
    assert found.offsets == [tuple(pair) for pair in wanted["offset_mapping"]]
    assert found.tokens == reference.convert_ids_to_tokens(wanted["input_ids"])
    assert found.input_ids.dtype == found.segment_ids.dtype == np.int64
    assert list(found.special_tokens_mask) == wanted["special_tokens_mask"]
    assert found.prompt_tokens == 0


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("max_tokens", [5, 12, 64, 512])
def test_tokens_are_transformers(
    artifact: Artifact, reference: Any, max_tokens: int, side: Any
) -> None:
    options = Options(truncate=True, direction=side)
    found = tokenizer(artifact, max_tokens).tokenize(TEXTS, options)
    cut = 0
    for text, one in zip(TEXTS, found, strict=True):
        assert_equal(one, expected(reference, text, max_tokens, side), reference)
        whole = expected(reference, text, 10**6, side)["input_ids"]
        assert one.truncated == (len(whole) > max_tokens)
        cut += one.truncated
    assert (cut > 3) == (max_tokens < 512)


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("max_tokens", [16, 512])
def test_the_limit_is_exact(artifact: Artifact, max_tokens: int, pair: bool) -> None:
    def words(tokens: int) -> Input:
        """Return a text of some tokens, special ones included."""
        return ("it", "it " * (tokens - 4)) if pair else "it " * (tokens - 2)

    one = tokenizer(artifact, max_tokens)
    for options in (Options(), Options(truncate=True)):
        (text,) = one.tokenize([words(max_tokens)], options)
        assert (len(text.input_ids), text.truncated) == (max_tokens, False)
    message = rf"^inputs\[1\] has {max_tokens + 1} tokens; at most {max_tokens} fit"
    with pytest.raises(InputTooLong, match=message) as refused:
        one.tokenize(["it", words(max_tokens + 1), words(max_tokens + 2)], Options())
    assert refused.value.status == 422
    _, text = one.tokenize(["it", words(max_tokens + 1)], Options(truncate=True))
    assert (len(text.input_ids), text.truncated) == (max_tokens, True)


@pytest.mark.parametrize(("max_tokens", "text"), [(1, "one two"), (2, ("one", "two"))])
def test_a_limit_that_special_tokens_exceed_is_kept(
    artifact: Artifact, max_tokens: int, text: Input
) -> None:
    with pytest.raises(InputTooLong, match=f"{max_tokens} tokens leave no room"):
        tokenizer(artifact, max_tokens).tokenize([text], Options(truncate=True))


def test_characters_of_texts_that_are_not_cut_are_capped(artifact: Artifact) -> None:
    options = Options()
    one = tokenizer(artifact, max_tokens=16, max_characters=20)
    fitting: list[Input] = ["x" * 20, ("x" * 10, "x" * 10), "😀" * 20]
    assert len(one.tokenize(fitting, options)) == 3
    too_long: list[Input] = ["x" * 21, ("x" * 20, "x"), "😀" * 21]
    for text in too_long:
        message = r"^inputs\[0\] has 21 characters; at most 20 are taken"
        with pytest.raises(InputTooLong, match=message):
            one.tokenize([text], options)
        assert len(one.tokenize([text], Options(truncate=True))) == 1


def test_a_text_that_cannot_be_cut_is_refused(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tokenizer(artifact, max_tokens=8)
    shared.tokenize(["it " * 900], Options(truncate=True))  # with the limit of the service
    monkeypatch.setattr(truncation, "MOST_CHARACTERS", 2000)
    one = tokenizer(artifact, max_tokens=8)
    options = Options(truncate=True)
    for text in ("x" * 9000, " " * 9000, ("x" * 9000, "it")):
        with pytest.raises(InputTooLong, match=r"^inputs\[1\] has too few words in 2000 char"):
            one.tokenize(["it", text], options)
    with pytest.raises(InputTooLong, match=r"^inputs\[0\] is a pair of 2700 and 2703 characters"):
        one.tokenize([("it " * 900, "it " * 901)], options)


def test_characters_are_counted_before_anything_is_tokenised(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = tokenizer(artifact, max_characters=20)
    monkeypatch.setattr(one, "_source", None)  # any use fails
    with pytest.raises(InputTooLong, match=r"inputs\[2\]"):
        one.tokenize(["fits", "fits", "x" * 10**7, "fits"], Options())


def test_an_error_says_nothing_of_the_text(artifact: Artifact) -> None:
    one = tokenizer(artifact, max_tokens=5, max_characters=100)
    for text in ("canary " * 10, "canary " * 100):
        with pytest.raises(InputTooLong) as refused:
            one.tokenize([text], Options())
        assert "canary" not in str(refused.value)


def test_a_text_without_tokens_is_refused(artifact: Artifact) -> None:
    one = tokenizer(artifact)
    one._source = FileTokenizer(artifact.path(TOKENIZER))  # not the shared one
    one._source.whole = Tokenizer.from_str(one._source.whole.to_str())
    one._source.whole.post_processor = None  # of a tokenizer that adds no special tokens
    with pytest.raises(Unprocessable, match=r"inputs\[1\] has no tokens"):
        one.tokenize(["some", " "], Options())


def test_threads_with_mixed_truncation_do_not_disturb_each_other(
    artifact: Artifact, reference: Any
) -> None:
    one = tokenizer(artifact, max_tokens=12)
    texts = ["supercalifragilistic " * 3, "1234567890 " * 40, "one word after another " * 9]

    def ids(job: tuple[str, Any]) -> list[int]:
        (found,) = one.tokenize([job[0]], Options(truncate=True, direction=job[1]))
        ids: list[int] = found.input_ids.tolist()
        return ids

    jobs = [(text, side) for text in texts for side in ("right", "left")] * 200
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        found = [*pool.map(ids, jobs)]
    wanted = {(text, side): expected(reference, text, 12, side) for text, side in jobs[:6]}
    assert found == [wanted[job]["input_ids"] for job in jobs]


WORDS = {one: n for n, one in enumerate("a\x7f\x80\u07ff\u0800\uffff\U00010000😀?")}
"""The last and first characters of each length in UTF-8."""


@pytest.mark.parametrize("text", [" ".join(WORDS), "😀", "\x80 a", "  a"])
def test_pieces_are_the_bytes_of_the_text(text: str) -> None:
    tokenizer = Tokenizer(models.WordLevel(WORDS, "?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    encoding = tokenizer.encode(text)
    tokens = TextTokens(text, encoding, encoding.ids, tokenizer.id_to_token)
    pieces = [piece for step in tokens.steps(2) for piece in step]
    assert pieces == [piece for step in tokens.steps(100) for piece in step]
    assert [piece["text"] for piece in pieces] == text.split()
    assert tokens.characters == len("".join(text.split()))
    for piece in pieces:
        assert text.encode()[piece["start"] : piece["stop"]].decode() == piece["text"]
        assert (piece["id"], piece["special"]) == (WORDS[piece["text"]], False)


class Watched:
    """Encoding that records the names of the lists that are read."""

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self.read: set[str] = set()

    def __len__(self) -> int:
        return len(self.encoding)

    def __getattr__(self, name: str) -> Any:
        self.read.add(name)
        return getattr(self.encoding, name)


def test_tokens_are_read_without_lists_of_all_names_and_offsets() -> None:
    """Such lists take 70 ms for 500,000 tokens, in which no other thread runs."""
    tokenizer = Tokenizer(models.WordLevel({"[CLS]": 0, "?": 1}, "?"))
    tokenizer.add_special_tokens(["[CLS]"])
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A", None, [("[CLS]", 0)])
    watched = Watched(tokenizer.encode("?"))
    tokens = TextTokens("?", cast(Encoding, watched), watched.encoding.ids, tokenizer.id_to_token)
    assert [piece["text"] for step in tokens.steps(9) for piece in step] == ["[CLS]", "?"]
    assert watched.read == {"special_tokens_mask", "token_to_chars"}


PIECES = [("<unk>", 0.0), ("▁", -2.0), ("▁the", -1.0), ("cat", -1.0), ("s", -2.0), ("▁ca", -9.0)]
CONTINUED = {"[UNK]": 0, "the": 1, "cat": 2, "##s": 3, "##at": 4}


def continuing(folder: Path, tokenizer: Tokenizer, text: str) -> dict[str, bool]:
    tokenizer.save(str(path := folder / TOKENIZER))
    own = TextTokenizer(path, SentenceConfig(max_length=64), Limits(64, 99))
    (found,) = own.tokenize([text], Options())
    places = [text[start:end] for start, end in found.offsets]
    return dict(zip(places, own.continuing(text, found), strict=True))


def test_pieces_that_are_marked(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordPiece(CONTINUED, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    found = continuing(tmp_path, tokenizer, "the cats, ?")
    assert found == {"the": False, "cat": False, "s": True, ",": False, "?": False}


@pytest.mark.parametrize("unknown", [0, 4])
def test_pieces_that_are_not_marked(unknown: int, tmp_path: Path) -> None:
    """A space before a token, or at its start, begins a word; so does the unknown token."""
    tokenizer = Tokenizer(models.Unigram(PIECES, unk_id=unknown, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    found = continuing(tmp_path, tokenizer, "the cats")
    assert found == {"the": False, " ": False, "cat": False, "s": unknown == 0}


PAD, SEP, A, B = (VOCABULARY.index(token) for token in ("[PAD]", "[SEP]", "a", "b"))
CLS = VOCABULARY.index("[CLS]")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path)
    return tmp_path / "tokenizer.json"


def tokenizer_at(path: Path, sentence: SentenceConfig) -> TextTokenizer:
    return TextTokenizer(path, sentence, Limits(sentence.max_length, 1000))


def test_texts_are_padded_to_the_full_length(path: Path) -> None:
    own = tokenizer_at(path, SentenceConfig(max_length=6, pad_token_id=PAD))
    short, full = own.tokenize(["a b", "a b a b"], Options())
    assert short.input_ids.tolist() == [CLS, A, B, SEP, PAD, PAD]
    assert list(short.special_tokens_mask) == [1, 0, 0, 1, 1, 1]
    assert short.tokens[-1] == "[PAD]"
    assert short.places.tolist()[-2:] == [[0, 0], [0, 0]]
    assert full.input_ids.tolist() == [CLS, A, B, A, B, SEP]
    (cut,) = own.tokenize(["a b"], Options(truncate=True, max_tokens=3))
    assert cut.input_ids.tolist() == [CLS, A, SEP, PAD, PAD, PAD]
    assert [short.truncated, full.truncated, cut.truncated] == [False, False, True]
    with pytest.raises(InputTooLong, match="has 7 tokens"):
        own.tokenize(["a b a b a"], Options(windows=True))  # a padded text has no windows


def test_a_text_is_cut_after_its_first_end_token(path: Path) -> None:
    own = tokenizer_at(path, SentenceConfig(max_length=20, end_token_id=SEP))
    cut, whole = own.tokenize(["a [SEP] b", "a b"], Options())
    assert cut.input_ids.tolist() == [CLS, A, SEP]
    assert (cut.truncated, cut.tokens, len(cut.places)) == (True, ["[CLS]", "a", "[SEP]"], 3)
    assert whole.input_ids.tolist() == [CLS, A, B, SEP]
    assert not whole.truncated


def test_an_end_token_that_is_the_unknown_one_too_gives_no_warning(tmp_path: Path) -> None:
    write_clip_tokenizer(tmp_path)
    own = TextTokenizer(tmp_path / "tokenizer.json", SentenceConfig(max_length=20), Limits(20, 99))
    (text,) = own.tokenize(["a cat"], Options())
    assert text.input_ids[-1] in own._source.unknown_ids
    assert not text.unknown.any()


def test_ids_are_decoded_and_encoded_again(artifact: Artifact, reference: Any) -> None:
    """No special tokens are put around them: they have their own, or none."""
    own = tokenizer(artifact, 16, 400)
    for special in (True, False):
        ids = reference(DEEP, add_special_tokens=special)["input_ids"]
        read, text = own.tokenize([TokenIds(tuple(ids)), "a text"], Options())
        assert read.input_ids.tolist() == ids
        assert text.input_ids.tolist() == reference("a text")["input_ids"]
        (cut,) = own.tokenize([TokenIds(tuple(ids * 9))], Options(truncate=True))
        assert cut.input_ids.tolist() == (ids * 9)[:16]
        assert cut.truncated


@pytest.mark.parametrize("side", ["left", "right"])
def test_only_the_ids_that_remain_are_looked_up(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch, side: Any
) -> None:
    own, looked_up = tokenizer(artifact, 16, 400), list[int]()
    of_ids = own.vocabulary
    monkeypatch.setattr(own, "vocabulary", lambda ids: looked_up.extend(ids) or of_ids(ids))
    ids = (*[1037] * 50, *[1996] * 50)
    options = Options(truncate=True, direction=side, ids_as_given=True)
    (cut,) = own.tokenize([TokenIds(ids)], options)
    assert cut.input_ids[1:-1].tolist() == [1037 if side == "right" else 1996] * 14
    assert cut.truncated
    assert len(looked_up) == 16


def test_ids_that_are_no_tokens_or_too_many_are_refused(artifact: Artifact) -> None:
    own = tokenizer(artifact, 16, 400)
    for wrong in (-1, 30522):
        message = rf"inputs\[1\] has the token id {wrong}: ids are 0"
        with pytest.raises(Unprocessable, match=message):
            own.tokenize(["fits", TokenIds((101, wrong))], Options())
    with pytest.raises(InputTooLong, match=r"has 20 tokens; at most 16 fit"):
        own.tokenize([TokenIds((1037,) * 20)], Options())
    for many in ((1037,) * 401, (7592,) * 99):  # too many ids; too many characters of "hello"
        with pytest.raises(InputTooLong, match="characters; at most 400"):
            own.tokenize([TokenIds(many)], Options(truncate=True))


BYTE_LEVEL = {"RobertaTokenizer", "Qwen2Tokenizer", "GemmaTokenizer", "TokenizersBackend"}
BYTE_LEVEL |= {"LlamaTokenizer"}
"""Classes that have a token for every byte, and so no unknown ones."""
DEEP = "What is Deep Learning?"


def as_given(path: Path, ids: Sequence[int], most: int | None = None, side: Any = "right") -> Text:
    limits = Limits(most or 10**6, 10**6)
    own = TextTokenizer(path, SentenceConfig(max_length=512), limits)
    options = Options(most is not None, side, naming="input[3]", ids_as_given=True)
    (found,) = own.tokenize([TokenIds(tuple(ids))], options)
    return found


@pytest.mark.parametrize("special", [True, False])
def test_ids_with_and_without_special_tokens_are_the_same_text(
    artifact: Artifact, reference: Any, special: bool
) -> None:
    given = reference(DEEP, add_special_tokens=special)["input_ids"]
    whole = reference(DEEP, return_special_tokens_mask=True)
    found = as_given(artifact.path(TOKENIZER), given)
    assert found.input_ids.tolist() == whole["input_ids"]
    assert found.segment_ids.tolist() == whole["token_type_ids"]
    assert list(found.special_tokens_mask) == whole["special_tokens_mask"]
    assert found.tokens == reference.convert_ids_to_tokens(whole["input_ids"])
    assert not found.truncated


@pytest.mark.parametrize("name", CLASSES)
def test_ids_of_every_class_are_computed_as_they_are(tmp_path: Path, name: str) -> None:
    """Of unknown tokens too, whose text is another when it is tokenised again."""
    folder = write_tokenizer_folder(tmp_path, name)
    config = EncoderConfig.model_construct(vocab_size=VOCAB_SIZE)
    load_tokenizer(folder, config, lowercase=False).save(str(path := tmp_path / "ours.json"))
    reference = AutoTokenizer.from_pretrained(folder)
    around, unknown = set(reference("")["input_ids"]), 0
    for text in CORPUS:
        expected = reference(text)["input_ids"]
        assert as_given(path, expected).input_ids.tolist() == expected
        bare = reference(text, add_special_tokens=False)["input_ids"]
        if around.isdisjoint(bare):
            assert as_given(path, bare).input_ids.tolist() == expected
        else:  # the text spells a special token out
            with pytest.raises(Unprocessable, match="some special tokens of the model and not all"):
                as_given(path, bare)
        unknown += reference.unk_token_id in expected
    assert unknown > 5 or name in BYTE_LEVEL


@pytest.mark.parametrize("direction", ["right", "left"])
@pytest.mark.parametrize("most", [2, 3, 6, 7, 100])
def test_truncation_is_that_of_the_tokenizer(
    artifact: Artifact, reference: Any, direction: Any, most: int
) -> None:
    given = reference(DEEP)["input_ids"]
    reference.truncation_side = direction
    expected = reference(DEEP, truncation=True, max_length=most)["input_ids"]
    found = as_given(artifact.path(TOKENIZER), given, most, direction)
    assert (found.input_ids.tolist(), found.truncated) == (expected, len(expected) < len(given))


@pytest.mark.parametrize("given", [[101, 7592], [7592, 102], [7592, 101, 7592], [102, 7592, 101]])
def test_some_of_the_special_tokens_are_refused(artifact: Artifact, given: list[int]) -> None:
    with pytest.raises(Unprocessable, match=r"input\[3\]: .* begin them with \[101\] .*\[102\]"):
        as_given(artifact.path(TOKENIZER), given)


def test_a_pair_keeps_the_special_token_between_its_texts(
    artifact: Artifact, reference: Any
) -> None:
    given = reference("a", "b")["input_ids"]
    assert as_given(artifact.path(TOKENIZER), given).input_ids.tolist() == given


def test_a_tokenizer_without_special_tokens_adds_none(tmp_path: Path) -> None:
    tokenizer = byte_pairs()
    tokenizer.post_processor = None
    tokenizer.save(str(path := tmp_path / TOKENIZER))
    ids = tokenizer.encode("the water").ids
    assert as_given(path, ids).input_ids.tolist() == ids
