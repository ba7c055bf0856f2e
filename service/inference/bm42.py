"""BM42 vectors from the attention maps of an encoder's last layer.

Vasnetsov 2024, https://qdrant.tech/articles/bm42/, with the stemmer, the hash and the scale of
Qdrant's fastembed. The weight of a word is the sum over its pieces, without special tokens,
punctuation and stop words. The weight of a stem is the maximum over its words, stored as
√(ln(1 + weight)) at the index |MurmurHash3(stem)|.

Notation: S tokens of one text, L layers, N heads.
"""

from __future__ import annotations

import asyncio
import contextlib
import string
from collections.abc import Collection, Iterator, Sequence

import mmh3
import numpy as np
from py_rust_stemmers import SnowballStemmer

from service.engines.contract import Floats
from service.errors import NoTaskHead
from service.inference.attention.maps import AttentionSelection, LayerMaps
from service.inference.attention.stream import AttentionStream
from service.inference.core import Inference
from service.inference.encoding import PreparedTexts
from service.inference.outputs.task_head import SparseVector

_ENGLISH = """
a about above after again against ain all am an and any are aren as at be because been before
being below between both but by can couldn d did didn do does doesn doing don down during each
few for from further had hadn has hasn have haven having he her here hers herself him himself
his how i if in into is isn it its itself just ll m ma me mightn more most mustn my myself
needn no nor not now o of off on once only or other our ours ourselves out over own re s same
shan she should shouldn so some such t than that the their theirs them themselves then there
these they this those through to too under until up ve very was wasn we were weren what when
where which while who whom why will with won wouldn y you your yours yourself yourselves
"""
STOP_WORDS = frozenset(_ENGLISH.split())
"""English stop words of NLTK, without words with an apostrophe, which WordPiece splits."""
_LEFT_OUT = STOP_WORDS.union(string.punctuation)
_STEMMER = SnowballStemmer("english")
PREFIX = "##"
"""Prefix of a piece that continues a word in WordPiece vocabularies."""


def word_weights(
    tokens: Sequence[str], attention: Floats, special: Collection[str]
) -> Iterator[tuple[str, float]]:
    """Yield each word and the sum of the attention to its pieces, without special tokens.

    Tokens are the S WordPieces of a text; attention is that of [CLS] to each, `[S]`, mean over
    heads.
    """
    word, weight = "", 0.0
    for token, share in zip(tokens, attention.tolist(), strict=True):
        if token in special:
            continue
        if token.startswith(PREFIX):
            word += token.removeprefix(PREFIX)
            weight += share
            continue
        if word:
            yield word, weight
        word, weight = token, share
    if word:
        yield word, weight


def sparse_vector(
    tokens: Sequence[str], attention: Floats, special: Collection[str]
) -> SparseVector:
    """Return the vector of a text; arguments as for `word_weights`."""
    largest: dict[str, float] = {}
    for word, weight in word_weights(tokens, attention, special):
        if word not in _LEFT_OUT:
            stemmed = _STEMMER.stem_word(word)
            largest[stemmed] = max(weight, largest.get(stemmed, 0.0))
    weights = {abs(mmh3.hash(word)): weight for word, weight in largest.items()}
    indices = np.array(sorted(weights), np.int64)
    values = np.array([weights[index] for index in indices.tolist()], np.float64)
    return SparseVector(indices, np.sqrt(np.log1p(values)).astype(np.float32))


def check_word_pieces(inference: Inference) -> None:
    """Raise `NoTaskHead` if tokens do not mark the beginning of words, as WordPieces do."""
    if not inference.tokenizer.word_pieces:
        raise NoTaskHead(
            f"{inference.manifest.model} has no WordPiece tokenizer, which bm42 takes words from: "
            "serve a BERT"
        )


def last_layer(inference: Inference, prepared: PreparedTexts) -> AttentionStream:
    """Return a stream of the first token's attention in the last layer, `[S]`, mean over heads."""
    config = inference.config
    layer, heads = config.num_hidden_layers - 1, tuple(range(config.num_attention_heads))
    selection = AttentionSelection({"encoder": ((layer,), heads)})
    return inference.attention(prepared, selection, _looks_of_first)


async def bm42_vectors(
    inference: Inference, prepared: PreparedTexts, stream: AttentionStream
) -> list[SparseVector]:
    """Compute the vector of each text from the stream of `last_layer`."""
    special = inference.tokenizer.special_tokens
    async with contextlib.aclosing(stream.results()) as results:
        rows = [
            (prepared.texts[maps.text].tokens, np.asarray(maps.arrays["attention"], np.float32))
            async for maps in results
            if isinstance(maps, LayerMaps)
        ]

    return await asyncio.to_thread(lambda: [sparse_vector(*row, special) for row in rows])


def _looks_of_first(weights: Floats) -> Floats:
    """Average the first token's attention over heads, `[N, S, S]` → `[S]`."""
    attention: Floats = weights[:, 0].mean(axis=0)
    return attention
