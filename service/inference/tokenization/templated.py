"""Pairs in the chat template of a reranker, tokenised as one text.

Notation: S tokens of one text.
"""

from __future__ import annotations

import numpy as np

from model.numerics.pair_template import PairTemplate
from service.inference.tokenization.file_tokenizer import FileTokenizer
from service.inference.tokenization.tokenized import TokenizedText, places_of
from service.inference.tokenization.truncation import encode


def in_template(
    tokenizer: FileTokenizer,
    template: PairTemplate,
    pair: tuple[str, str],
    skipped: tuple[int, int] = (0, 0),
) -> TokenizedText:
    """Return a query and a document, tokenised in a chat template that adds all special tokens.

    Tokens of the template count as special tokens. A token that begins in the query or the document
    and ends in the template belongs to the former. Tokens up to the query's last have segment 0.

    Args:
        tokenizer: tokenizer of the model's texts.
        template: text around the pair.
        pair: query and document, or excerpts of them.
        skipped: number of characters before the excerpt of the query, and of the document.

    """
    encoding = encode(tokenizer.whole, template.filled(*pair), special_tokens=False)
    starts, ends = places_of(encoding.offsets).T
    places = np.zeros((len(starts), 2), np.int32)
    special = np.ones(len(starts), bool)
    begin = len(template.before)
    for text, before in zip(pair, skipped, strict=True):
        spans = np.clip(np.stack([starts, ends], axis=1) - begin, 0, len(text))
        own = spans[:, 0] < spans[:, 1]
        places[own] = spans[own] + before
        special &= ~own
        begin += len(text) + len(template.between)
    input_ids = np.array(tokenizer.ids(encoding), np.int64)
    return TokenizedText(
        tokens=tokenizer.names.share(encoding.tokens),
        input_ids=input_ids,
        segment_ids=(starts >= len(template.before) + len(pair[0])).astype(np.int64),
        places=places,
        truncated=False,
        prompt_tokens=0,
        special_tokens_mask=special.tobytes(),
        unknown=tokenizer.is_unknown(input_ids, special),
    )
