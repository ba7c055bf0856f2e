"""Does an explanation find the tokens that matter? Deletion, over pairs of sentences of STS-B.

Run: python -m benchmarks.faithfulness FILE.csv [--url URL] [--pairs N] [--plot FILE.svg]. Each
method orders the tokens of both texts of a pair by what they are said to give to the cosine, from a
service's /attention and /explain. transformers then removes them in that order, a tenth at a time
up to a half: a removed token is neither attended to nor pooled, the positions of the others stay,
and special tokens are never removed. (Of texts that have hardly a word left, any two are alike.)
What counts:

    area       the mean cosine over the five steps, over that of the whole texts, mean over the
               pairs: the lower, the sooner the tokens are removed that matter
    agreement  Spearman's rank correlation with `occlusion`, median over the pairs

`weights`, `rollout`, `norms` and `norm_rollout` know nothing of the other text: a token counts by
the attention that it receives, mean over queries (and over layers and heads).
DeYoung et al. 2020 (https://arxiv.org/abs/1911.03429) call the area comprehensiveness; a token that
makes the texts less alike comes last, which attention cannot say.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from transformers import AutoModel, AutoTokenizer

from benchmarks.harness.plots import deletion_curves
from benchmarks.harness.report import markdown
from benchmarks.harness.service import default_checkpoint
from benchmarks.syntax import service

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Of the tokens that are removed, step by step."""
PAIRS_PER_REQUEST = 8
BATCH = 64
"""Texts that transformers encodes at a time."""
INCLUDED = ("weights", "norms", "rollout", "norm_rollout")
EXPLAINED = ("pairs", "decomposition", "occlusion")
Floats = NDArray[np.floating[Any]]
Sides = tuple[Floats, Floats]
"""Importance of each token of both texts, `[S_a]` and `[S_b]`."""
T = TypeVar("T")


@dataclass(frozen=True)
class Explained:
    """A pair of texts, and how each method ranks their tokens."""

    token_ids: tuple[list[int], list[int]]
    removable: tuple[list[int], list[int]]
    """Indices of tokens that are not special."""
    importance: Mapping[str, Sides]


def explain(client: httpx.Client, pairs: Sequence[tuple[str, str]]) -> list[Explained]:
    """What the service says of some pairs."""
    explained = ask(client, "/explain", {"inputs": pairs, "include": EXPLAINED})
    texts = [text for pair in pairs for text in pair]
    attention = ask(client, "/attention", {"inputs": texts, "include": INCLUDED})
    return [
        of_pair(result, sides)
        for result, sides in zip(explained, batched(attention, 2), strict=True)
    ]


def batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """So many neighbours at a time; the last are those that are left."""
    return (items[start : start + size] for start in range(0, len(items), size))


def ask(client: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The results of one request."""
    return client.post(path, json=body).raise_for_status().json()["results"]


def of_pair(result: Mapping[str, Any], sides: Sequence[Mapping[str, Any]]) -> Explained:
    """One pair's importance by every method, from its explanation and its texts' attention."""
    importance: dict[str, Sides] = {
        "weights": received(sides, "attention"),
        "rollout": received(sides, "rollout"),
        "norms": received(sides, "norms"),
        "norm_rollout": received(sides, "norm_rollout"),
    }
    for name in ("pairs", "decomposition"):
        shares = np.array(result[name])
        importance[name] = shares.sum(axis=1), shares.sum(axis=0)
    first, second = map(np.array, result["occlusion"])
    importance["occlusion"] = first, second
    texts = result["texts"]
    return Explained(
        (texts[0]["token_ids"], texts[1]["token_ids"]),
        (removable(texts[0]), removable(texts[1])),
        importance,
    )


def received(sides: Sequence[Mapping[str, Any]], name: str) -> Sides:
    """Attention that each token receives, mean over all other axes."""
    maps = [np.array(side[name]) for side in sides]
    first, second = (each.reshape(-1, each.shape[-1]).mean(axis=0) for each in maps)
    return first, second


def removable(text: Mapping[str, Any]) -> list[int]:
    """Indices of the tokens that stand for characters."""
    return [i for i, (start, end) in enumerate(text["offsets"]) if end > start]


def kept_masks(pair: Explained, importance: Sides) -> list[tuple[Floats, Floats]]:
    """Masks `[S]` of both texts after each step: the most important tokens go first."""
    places = [(side, i) for side in (0, 1) for i in pair.removable[side]]
    places.sort(key=lambda place: -importance[place[0]][place[1]])
    masks = []
    for share in SHARES:
        gone = places[: round(len(places) * share)]
        both = [np.ones(len(ids)) for ids in pair.token_ids]
        for side, i in gone:
            both[side][i] = 0
        masks.append((both[0], both[1]))
    return masks


class Reference:
    """Vectors of masked texts by transformers, in float32, mean-pooled."""

    def __init__(self, checkpoint: Path) -> None:
        self._model = AutoModel.from_pretrained(
            checkpoint, attn_implementation="eager", dtype=torch.float32
        ).eval()
        self._padding = AutoTokenizer.from_pretrained(checkpoint).pad_token_id

    @torch.inference_mode()
    def vectors(self, texts: Sequence[tuple[list[int], Floats]]) -> Floats:
        """Unit vectors `[n, H]` of token ids with their masks."""
        vectors: list[Floats] = [np.empty(0)] * len(texts)
        order = sorted(range(len(texts)), key=lambda i: len(texts[i][0]))
        for some in batched(order, BATCH):
            longest = len(texts[some[-1]][0])
            ids = torch.full((len(some), longest), self._padding)
            mask = torch.zeros((len(some), longest))
            for row, i in enumerate(some):
                own, kept = texts[i]
                ids[row, : len(own)] = torch.tensor(own)
                mask[row, : len(own)] = torch.tensor(kept)
            states = self._model(input_ids=ids, attention_mask=mask).last_hidden_state
            pooled = (states * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
            for i, vector in zip(some, torch.nn.functional.normalize(pooled), strict=True):
                vectors[i] = vector.numpy()
        return np.stack(vectors)

    def cosines(self, pairs: Sequence[Explained], masks: Sequence[Sequence[Sides]]) -> Floats:
        """Cosines `[pairs, steps]` of both texts under each pair's masks."""
        texts = [
            (ids, kept)
            for pair, steps in zip(pairs, masks, strict=True)
            for step in steps
            for ids, kept in zip(pair.token_ids, step, strict=True)
        ]
        vectors = self.vectors(texts)
        return (vectors[0::2] * vectors[1::2]).sum(axis=1).reshape(len(pairs), -1)


def deletion(
    pairs: Sequence[Explained],
    cosines: Callable[[Sequence[Explained], Sequence[Sequence[Sides]]], Floats],
) -> dict[str, Floats]:
    """Method → mean cosine after each step over that of the whole texts, `[steps]`."""
    whole = [[(np.ones(len(a)), np.ones(len(b)))] for a, b in (p.token_ids for p in pairs)]
    before = cosines(pairs, whole)
    generator = np.random.default_rng(0)
    orders: dict[str, list[Sides]] = {
        "random": [
            (generator.random(len(a)), generator.random(len(b)))
            for a, b in (p.token_ids for p in pairs)
        ]
    }
    for name in pairs[0].importance:
        orders[name] = [pair.importance[name] for pair in pairs]
    curves = {}
    for name, importance in orders.items():
        masks = [kept_masks(pair, own) for pair, own in zip(pairs, importance, strict=True)]
        curves[name] = (cosines(pairs, masks) / before).mean(axis=0)
    return curves


def agreement(pairs: Sequence[Explained], name: str) -> float:
    """Median rank correlation of a method with occlusion, over the removable tokens."""
    found = []
    for pair in pairs:
        own, occlusion = (
            np.concatenate(
                [
                    side[kept]
                    for side, kept in zip(pair.importance[which], pair.removable, strict=True)
                ]
            )
            for which in (name, "occlusion")
        )
        found.append(spearmanr(own, occlusion).statistic)
    return float(np.nanmedian(found))


def table(pairs: Sequence[Explained], curves: Mapping[str, Floats]) -> str:
    """A row a method, the smallest area first."""
    rows = []
    for name, curve in sorted(curves.items(), key=lambda item: item[1].mean()):
        agrees = "" if name == "random" else f"{agreement(pairs, name):.2f}"
        rows.append((name, f"{curve.mean():.3f}", agrees))
    return markdown(("order", "area", "agreement with occlusion"), rows)


def read_pairs(path: Path, count: int) -> list[tuple[str, str]]:
    """So many pairs, evenly over a file of two sentences and a score a line.

    The most alike half: a pair that is not alike has no cosine to explain.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = sorted(csv.reader(file), key=lambda row: -float(row[2]))
    alike = rows[: len(rows) // 2]
    chosen = np.linspace(0, len(alike) - 1, min(count, len(alike))).astype(int)
    return [(alike[i][0], alike[i][1]) for i in chosen]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, help="two sentences and their score a line, CSV")
    parser.add_argument("--url", help="of a running service; one is started if it is not given")
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--plot", type=Path, help="an SVG file")
    options = parser.parse_args()
    pairs: list[Explained] = []
    with service(options.url) as url, httpx.Client(base_url=url, timeout=300) as client:
        for some in batched(read_pairs(options.file, options.pairs), PAIRS_PER_REQUEST):
            pairs += explain(client, some)
    curves = deletion(pairs, Reference(default_checkpoint()).cosines)
    print(f"{len(pairs)} pairs\n\n{table(pairs, curves)}")
    if options.plot:
        deletion_curves(SHARES, curves, options.plot)


if __name__ == "__main__":
    main()
