"""Faithfulness of explanations: deletion of important tokens in pairs of sentences of STS-B.

Run: python -m benchmarks.faithfulness FILE.csv [--url URL] [--pairs N] [--plot FILE.svg]. Each
method ranks the tokens of both texts of a pair by their contribution to the cosine, from a
service's /attention and /explain. transformers then removes them in that order, a tenth at a time
up to a half: a removed token is neither attended to nor pooled, the other tokens keep their
positions, and special tokens are never removed. (Any two texts with hardly a word left are alike.)
Metrics:

    area       the mean cosine over the five steps divided by the cosine of the whole texts, mean
               over the pairs: the lower, the sooner a method removes the tokens that matter
    agreement  Spearman's rank correlation with `occlusion`, median over the pairs

`weights`, `rollout`, `norms` and `norm_rollout` do not depend on the other text: a token's
importance is the attention that it receives, mean over queries (and over layers and heads).
DeYoung et al. 2020 (https://arxiv.org/abs/1911.03429) call the area comprehensiveness. A token that
makes the texts less alike ranks last; attention does not distinguish such tokens.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModel, AutoTokenizer

from benchmarks.harness.plots import deletion_curves
from benchmarks.harness.report import markdown
from benchmarks.harness.service import default_checkpoint
from benchmarks.syntax import service
from headscope import Client
from model.numerics.similarity import spearman

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Shares of the removable tokens that are removed, step by step."""
PAIRS_PER_REQUEST = 8
BATCH = 64
"""Number of texts that transformers encodes at a time."""
INCLUDED = ("weights", "norms", "rollout", "norm_rollout")
EXPLAINED = ("pairs", "decomposition", "occlusion")
Floats = NDArray[np.floating[Any]]
Sides = tuple[Floats, Floats]
"""Importance of each token of both texts, `[S_a]` and `[S_b]`."""
T = TypeVar("T")


@dataclass(frozen=True)
class Explained:
    """A pair of texts, and the importance of their tokens by each method."""

    token_ids: tuple[list[int], list[int]]
    removable: tuple[list[int], list[int]]
    """Indices of tokens that are not special."""
    importance: Mapping[str, Sides]


def explain(client: Client, pairs: Sequence[tuple[str, str]]) -> list[Explained]:
    """Return the pairs with their tokens' importance, as the service computes it."""
    explained = ask(client, "/explain", {"inputs": pairs, "include": EXPLAINED})
    texts = [text for pair in pairs for text in pair]
    attention = ask(client, "/attention", {"inputs": texts, "include": INCLUDED})
    return [
        of_pair(result, sides)
        for result, sides in zip(explained, batched(attention, 2), strict=True)
    ]


def batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Split items into batches of `size` neighbours; the last batch may be smaller."""
    return (items[start : start + size] for start in range(0, len(items), size))


def ask(client: Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the results of one request."""
    return json.loads(client.request(path, body).content)["results"]


def of_pair(result: Mapping[str, Any], sides: Sequence[Mapping[str, Any]]) -> Explained:
    """Compute a pair's importance by each method from its explanation and its texts' attention."""
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
    """Return the attention that each token receives, mean over all other axes."""
    maps = [np.array(side[name]) for side in sides]
    first, second = (each.reshape(-1, each.shape[-1]).mean(axis=0) for each in maps)
    return first, second


def removable(text: Mapping[str, Any]) -> list[int]:
    """Return the indices of the tokens that stand for characters."""
    return [i for i, (start, end) in enumerate(text["offsets"]) if end > start]


def kept_masks(pair: Explained, importance: Sides) -> list[tuple[Floats, Floats]]:
    """Return the masks `[S]` of both texts after each step; the most important tokens go first."""
    places = [(side, i) for side in (0, 1) for i in pair.removable[side]]
    places.sort(key=lambda place: -importance[place[0]][place[1]])
    masks = []
    for share in SHARES:
        removed = places[: round(len(places) * share)]
        both = [np.ones(len(ids)) for ids in pair.token_ids]
        for side, i in removed:
            both[side][i] = 0
        masks.append((both[0], both[1]))
    return masks


class Reference:
    """Encoder of masked texts: transformers in float32, mean-pooled."""

    def __init__(self, checkpoint: Path) -> None:
        self._model = AutoModel.from_pretrained(
            checkpoint, attn_implementation="eager", dtype=torch.float32
        ).eval()
        self._padding = AutoTokenizer.from_pretrained(checkpoint).pad_token_id

    @torch.inference_mode()
    def vectors(self, texts: Sequence[tuple[list[int], Floats]]) -> Floats:
        """Return the unit vectors `[n, H]` of token ids with their masks."""
        vectors: list[Floats] = [np.empty(0)] * len(texts)
        order = sorted(range(len(texts)), key=lambda i: len(texts[i][0]))
        for batch in batched(order, BATCH):
            longest = len(texts[batch[-1]][0])
            ids = torch.full((len(batch), longest), self._padding)
            mask = torch.zeros((len(batch), longest))
            for row, i in enumerate(batch):
                own, kept = texts[i]
                ids[row, : len(own)] = torch.tensor(own)
                mask[row, : len(own)] = torch.tensor(kept)
            states = self._model(input_ids=ids, attention_mask=mask).last_hidden_state
            pooled = (states * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
            for i, vector in zip(batch, torch.nn.functional.normalize(pooled), strict=True):
                vectors[i] = vector.numpy()
        return np.stack(vectors)

    def cosines(self, pairs: Sequence[Explained], masks: Sequence[Sequence[Sides]]) -> Floats:
        """Return the cosines `[pairs, steps]` of both texts under each pair's masks."""
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
    """Return each method's mean relative cosine after each step, `[steps]`.

    A relative cosine is the cosine of the masked texts divided by the cosine of the whole texts.
    """
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
    """Return the median rank correlation of a method with occlusion, over the removable tokens."""
    correlations = []
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
        correlations.append(spearman(own, occlusion))
    return float(np.nanmedian(correlations))


def table(pairs: Sequence[Explained], curves: Mapping[str, Floats]) -> str:
    """Return a Markdown table, a row a method, the smallest area first."""
    rows = []
    for name, curve in sorted(curves.items(), key=lambda item: item[1].mean()):
        agrees = "" if name == "random" else f"{agreement(pairs, name):.2f}"
        rows.append((name, f"{curve.mean():.3f}", agrees))
    return markdown(("order", "area", "agreement with occlusion"), rows)


def read_pairs(path: Path, count: int) -> list[tuple[str, str]]:
    """Read `count` pairs, spread evenly over a CSV file of two sentences and a score a line.

    Only the most similar half is used: a dissimilar pair has no cosine to explain.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = sorted(csv.reader(file), key=lambda row: -float(row[2]))
    alike = rows[: len(rows) // 2]
    chosen = np.linspace(0, len(alike) - 1, min(count, len(alike))).astype(int)
    return [(alike[i][0], alike[i][1]) for i in chosen]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, help="two sentences and their score a line, CSV")
    parser.add_argument("--url", help="URL of a running service; by default one is started")
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--plot", type=Path, help="an SVG file")
    options = parser.parse_args()
    pairs: list[Explained] = []
    with service(options.url) as url, Client(url, timeout=300) as client:
        for some in batched(read_pairs(options.file, options.pairs), PAIRS_PER_REQUEST):
            pairs += explain(client, some)
    curves = deletion(pairs, Reference(default_checkpoint()).cosines)
    print(f"{len(pairs)} pairs\n\n{table(pairs, curves)}")
    if options.plot:
        deletion_curves(SHARES, curves, options.plot)


if __name__ == "__main__":
    main()
