"""Small tokenizers of every supported class, saved by transformers itself."""

from __future__ import annotations

import functools
import json
import struct
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer, UnigramTrainer, WordPieceTrainer

from tests.model.checkpoints import edit_json
from tests.model.texts import TEXTS

LINES = [
    *TEXTS,
    *(
        f"The {noun} that {verb} the {noun}s in the {noun}house, {number} times a day."
        for noun in ("river", "water", "ship", "cat", "hill", "word", "Straße", "été", "мир")
        for verb in ("runs", "carries", "isn't", "'ll", "looks at", "Looks At")
        for number in (1, 20, 1999)
    ),
]
"""Lines to train on."""
BERTS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTAS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
GEMMAS = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
LLAMAS = ["<unk>", "<s>", "</s>"]
CLASSES = {
    "BertTokenizer": "bert",
    "MPNetTokenizer": "mpnet",
    "RobertaTokenizer": "roberta",
    "XLMRobertaTokenizer": "xlm-roberta",
    "CamembertTokenizer": "camembert",
    "AlbertTokenizer": "albert",
    "DebertaV2Tokenizer": "deberta-v2",
    "Qwen2Tokenizer": "qwen3",
    "GemmaTokenizer": "gemma3_text",
    "LlamaTokenizer": "llama",
    "TokenizersBackend": "modernbert",
    "T5Tokenizer": "t5",
    "MBartTokenizer": "mbart",
    "MBart50Tokenizer": "mbart50",
    "NllbTokenizer": "m2m_100",
}
"""Names of the classes, each with a `model_type` that has it."""
VOCAB_SIZE = 2000
"""Vocabulary size larger than the ids of any of them."""


def write_tokenizer_folder(folder: Path, name: str, **settings: Any) -> Path:
    """Write a config of the class's family and its tokenizer, with additional settings."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in _saved(name).items():
        (folder / file).write_bytes(content)
    edit_json(folder / "config.json", model_type=CLASSES[name])
    edit_json(folder / "tokenizer_config.json", **settings)
    return folder


@functools.cache
def _saved(name: str) -> dict[str, bytes]:
    with TemporaryDirectory() as folder:
        _tokenizer(name).save_pretrained(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def _tokenizer(name: str) -> Any:
    cls = getattr(transformers, name)
    if name == "BertTokenizer":
        return cls(vocab=word_pieces(*BERTS))
    if name == "MPNetTokenizer":
        return cls(vocab=word_pieces(*ROBERTAS, "[UNK]"))
    if name in ("GemmaTokenizer", "NllbTokenizer", "LlamaTokenizer"):
        vocabulary, merges = spaced_byte_pairs(*(LLAMAS if name == "LlamaTokenizer" else GEMMAS))
        return cls(vocab=vocabulary, merges=merges)
    if name == "TokenizersBackend":
        return cls(tokenizer_object=modernbert(), cls_token="[CLS]", sep_token="[SEP]")
    if name in ("RobertaTokenizer", "Qwen2Tokenizer"):
        special = ROBERTAS if name == "RobertaTokenizer" else ["<|endoftext|>"]
        vocabulary, merges = byte_pairs(*special)
        return cls(vocab=vocabulary, merges=merges)
    special = {
        "T5Tokenizer": ["<pad>", "</s>", "<unk>"],
        "MBartTokenizer": [*ROBERTAS[:4], "en_XX", "ro_RO", "<mask>"],
        "MBart50Tokenizer": [*ROBERTAS[:4], "en_XX", "ro_RO", "<mask>"],
        "XLMRobertaTokenizer": [*ROBERTAS[:4], "<mask>"],
        "CamembertTokenizer": ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"],
        "AlbertTokenizer": ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "[X]", "THE"],
        "DebertaV2Tokenizer": ["[PAD]", "[CLS]", "[SEP]", "[UNK]"],
    }[name]
    return cls(vocab=sentence_pieces(*special), _spm_precompiled_charsmap=charsmap())


@functools.cache
def word_pieces(*special: str) -> dict[str, int]:
    """Return ids of word pieces of lower-case text and of some capitals in it."""
    tokenizer = Tokenizer(models.WordPiece())
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    lines = [*LINES, *map(str.lower, LINES)]
    trainer = WordPieceTrainer(
        vocab_size=1200, special_tokens=[*special], show_progress=False, limit_alphabet=500
    )
    tokenizer.train_from_iterator(lines, trainer)
    return dict(tokenizer.get_vocab())


@functools.cache
def byte_pairs(*special: str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return ids and merges of byte pairs."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(
        vocab_size=700,
        special_tokens=[*special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    return _pairs(tokenizer)


@functools.cache
def spaced_byte_pairs(*special: str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return ids and merges of character pairs, with a byte fallback for other characters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    trainer = BpeTrainer(
        vocab_size=900,
        special_tokens=[*special, *(f"<0x{byte:02X}>" for byte in range(256))],
        limit_alphabet=200,
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    return _pairs(tokenizer)


def _pairs(tokenizer: Tokenizer) -> tuple[dict[str, int], list[tuple[str, str]]]:
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


@functools.cache
def sentence_pieces(*special: str) -> list[tuple[str, float]]:
    """Return pieces and their log probabilities, by id; special tokens have 0."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = UnigramTrainer(
        vocab_size=700,
        special_tokens=[*special],
        unk_token=next(token for token in special if "unk" in token.lower()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    trained = json.loads(tokenizer.to_str())["model"]["vocab"]
    # Rounded and sorted: finer differences of scores depend on the run, and would make checkpoints
    # of which no export is kept for the next run.
    pieces = [(piece, round(score, 2)) for piece, score in trained]
    first = len(special)
    return pieces[:first] + sorted(pieces[first:], key=lambda one: (-one[1], one[0]))


def modernbert() -> Tokenizer:
    """Return ModernBERT's tokenizer: bytes, and BERT's special tokens."""
    vocabulary, merges = byte_pairs(*BERTS)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(BERTS)
    return tokenizer


@functools.cache
def charsmap() -> bytes:
    """Return SentencePiece's normalisation of a few characters.

    It is a trie of their bytes (Darts-clone: the units of a node's children lie at its base, by
    byte), followed by their replacements, each ended by a zero.
    """
    replaced = {"ﬁ": "fi", "Ａ": "A", "　": " ", "½": "1/2", "\u200b": " ", "™": "TM"}
    starts, texts = {}, b""
    for character, text in replaced.items():
        starts[character.encode()] = len(texts)
        texts += text.encode() + b"\0"
    nodes = sorted({key[:end] for key in starts for end in range(len(key) + 1)})
    base = {node: 256 * index for index, node in enumerate(nodes, 1)}
    array = [0] * (256 * (len(nodes) + 1))
    for node in nodes:
        position = base[node[:-1]] + node[-1] if node else 0
        leaf = node in starts
        array[position] = (position ^ base[node]) << 10 | leaf << 8 | (node[-1] if node else 0)
        if leaf:
            array[base[node]] = 1 << 31 | starts[node]
    trie = struct.pack(f"<{len(array)}I", *array)
    return struct.pack("<I", len(trie)) + trie + texts
