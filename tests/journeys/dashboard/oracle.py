"""Expected content of the dashboard, from the API and computed in numpy."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from tests.service.plain import NAMES

FIRST_TEXT = "The animal didn't cross the street because it was too tired."


class Answer:
    """Reply of /attention to one text: maps `[L, N, S, S]` and statistics `[L, N]`."""

    def __init__(self, client: httpx.Client, inputs: Any = FIRST_TEXT, **body: Any) -> None:
        asked = {"inputs": inputs, "include": ["weights", "stats", "rollout"], **body}
        response = client.post("/attention", json=asked)
        assert response.status_code == 200, response.text[:300]
        [result] = response.json()["results"]
        self.tokens: list[str] = result["tokens"]
        self.offsets: list[list[int]] = result["offsets"]
        self.segments = np.array(result["segment_ids"])
        self.weights = np.array(result["attention"])
        self.rollout = np.array(result["rollout"])
        self.statistics = {name: np.array(result["stats"][name]) for name in NAMES}
        self.shift = result.get("pooled_shift", 0.0)

    @property
    def names(self) -> list[str]:
        """Tokens; repeated ones are numbered from the second one on."""
        counts = [self.tokens[: i + 1].count(token) for i, token in enumerate(self.tokens)]
        return [f"{t} ({n})" if n > 1 else t for t, n in zip(self.tokens, counts, strict=True)]

    def at(self, token: str) -> int:
        """Return the index of a token."""
        return self.tokens.index(token)


def one_map(client: httpx.Client, text: str, layer: int, head: int) -> NDArray[Any]:
    """Return one head's map `[S, S]` of a long text, from the binary form."""
    response = client.post(
        "/attention",
        json={"inputs": text, "layers": [layer], "heads": [head]},
        headers={"accept": "application/vnd.safetensors"},
    )
    assert response.status_code == 200
    return safetensors.numpy.load(response.content)["attention.0"][0, 0]


def ranked(values: NDArray[Any]) -> list[str]:
    """Return heads as the page names them, the largest value first, ties in the model's order."""
    order = np.argsort(-values.ravel(), kind="stable")
    return [f"{place // values.shape[1]}·{place % values.shape[1]}" for place in order]


def merged(weights: NDArray[Any], groups: list[list[int]]) -> NDArray[Any]:
    """Merge a map `[S, S]` into words: sum over targets, mean over sources, by matrix products."""
    member = np.zeros((len(groups), len(weights)))
    for word, tokens in enumerate(groups):
        member[word, tokens] = 1
    return (member / member.sum(1, keepdims=True)) @ weights @ member.T


def label(answer: Answer, layer: int, head: int) -> str:
    """Return the behaviour of a head, as docs/dashboard.md defines it."""
    size = len(answer.tokens)
    own = {name: values[layer, head] for name, values in answer.statistics.items()}
    names = {
        "previous": "previous token",
        "next": "next token",
        "self": "itself",
        "cls": "[CLS] sink",
        "sep": "separator sink",
    }
    top = max(names, key=lambda name: own[name])
    separators = answer.tokens.count("[SEP]") if top == "sep" else 1
    if own[top] >= 0.5 and own[top] >= 2 * separators / size:
        return names[top]
    return "broad" if own["entropy"] >= 0.8 * np.log(size) else ""
