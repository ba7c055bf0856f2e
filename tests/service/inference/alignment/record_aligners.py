"""Write `aligners.json`: alignments of SimAlign and awesome-align of the same token vectors.

Not a part of the tests: it needs both aligners' own code on the path, `simalign` 0.4 and
`awesome_align` 0.1.7 (its repository's folder), beside torch and scikit-learn.

    PYTHONPATH=. python tests/service/inference/alignment/record_aligners.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch

UNUSED = ("boto3", "botocore", "botocore.config", "botocore.exceptions")
"""Modules that awesome-align needs only for downloads."""
PIECES = (
    ([1], [1]),
    ([1, 1], [2, 1, 1, 1]),
    ([1, 1, 1], [1, 1, 1]),
    ([1] * 8, [1] * 11),
    ([2, 1, 3, 1], [1, 1, 4]),
    ([3, 1, 1, 2, 1, 1, 2], [1, 2, 1, 1, 3, 1]),
    ([1, 2, 1, 1, 3, 2, 1, 1, 1, 4, 1], [2, 2, 1, 1, 1, 1, 3, 1, 2, 1, 1, 2, 1]),
)
"""Numbers of tokens of each word, for pairs of a source and a target."""
FEATURES = 6


def vectors(chance: np.random.Generator, m: int, n: int) -> tuple[Any, Any]:
    """Return a source's vectors, and similar vectors of a target in another order."""
    source = 2 * chance.standard_normal((m, FEATURES))
    order = chance.permutation(np.resize(np.arange(m), n))
    target = source[order] + chance.standard_normal((n, FEATURES))
    return source.round(3), target.round(3)


def of_simalign(case: dict[str, Any]) -> dict[str, Any]:
    """Return SimAlign's pairs of words by Argmax and Itermax."""
    from simalign.simalign import SentenceAligner

    names = [
        [[f"{side}{word}.{i}" for i in range(count)] for word, count in enumerate(case[side])]
        for side in ("source_pieces", "target_pieces")
    ]
    pieces = {"+".join(word): word for words in names for word in words}
    longest = max(len(case["source"]), len(case["target"]))
    padded = np.zeros((2, longest, FEATURES), np.float32)
    for row, side in zip(padded, ("source", "target"), strict=True):
        row[: len(case[side])] = case[side]
    aligner = SentenceAligner.__new__(SentenceAligner)
    aligner.token_type, aligner.distortion = "bpe", 0.0
    aligner.matching_methods = ["inter", "itermax"]
    aligner.embed_loader = SimpleNamespace(
        tokenizer=SimpleNamespace(tokenize=pieces.__getitem__),
        get_embed_list=lambda _: torch.from_numpy(padded),
    )
    found = aligner.get_word_aligns(*(["+".join(word) for word in words] for words in names))
    return {"mutual": found["inter"], "itermax": found["itermax"]}


def of_awesome_align(case: dict[str, Any]) -> dict[str, Any]:
    """Return awesome-align's pairs of words by softmax, with its default threshold."""
    sys.modules.update({name: MagicMock() for name in UNUSED if name not in sys.modules})
    from awesome_align.modeling import CLS_ID, SEP_ID, BertForMaskedLM, BertGuideHead

    hidden, ids, words = [], [], []
    for side in ("source", "target"):
        own = torch.zeros(1, len(case[side]) + 2, FEATURES)
        own[0, 1:-1] = torch.tensor(case[side])
        hidden.append(own)
        ids.append(torch.tensor([[CLS_ID, *[1000] * len(case[side]), SEP_ID]]))
        counts = case[f"{side}_pieces"]
        words.append([[word for word, count in enumerate(counts) for _ in range(count)]])
    states = iter(hidden)
    model = SimpleNamespace(bert=lambda *_, **__: next(states), guide_layer=BertGuideHead(None))
    found = BertForMaskedLM.get_aligned_word(model, *ids, *words, "cpu", 0, 0, test=True)
    return {"softmax": sorted((int(i), int(j)) for i, j in found[0])}


def main() -> None:
    """Write the file beside this one."""
    chance, cases = np.random.default_rng(16), []
    for source_pieces, target_pieces in PIECES:
        source, target = vectors(chance, sum(source_pieces), sum(target_pieces))
        case = {
            "source_pieces": source_pieces,
            "target_pieces": target_pieces,
            "source": source.tolist(),
            "target": target.tolist(),
        }
        cases.append(case | of_simalign(case) | of_awesome_align(case))
    path = Path(__file__).with_name("aligners.json")
    path.write_text(json.dumps(cases, separators=(",", ":")).replace("},{", "},\n{") + "\n")


if __name__ == "__main__":
    main()
