"""Word alignments of pairs of texts.

Notation: W_s words of a source, W_t of its target.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headscope.display import Shown, box, lines, shaded, short, table
from headscope.errors import HeadscopeError
from headscope.tables import frame

if TYPE_CHECKING:
    from pandas import DataFrame

MAX_LINKS = 5
"""Links in a short form."""


class AlignedWord(NamedTuple):
    """A word, and where it is in its text, in code points."""

    text: str
    start: int
    end: int


class Link(NamedTuple):
    """A word of the source and one of the target, by their indices."""

    source: int
    target: int
    score: float


@dataclass(frozen=True, eq=False, repr=False)
class Alignment(Shown):
    """Which words of a target translate which of its source; `str` of it has a line a pair."""

    model: str
    backend: str
    method: str
    source: list[AlignedWord]
    target: list[AlignedWord]
    links: list[Link]
    """Ascending."""
    pharaoh: str
    """The same as `i-j`, parted by spaces."""
    truncated: tuple[bool, bool]
    """Of both texts."""
    scores: NDArray[np.float32] | None
    """Of all pairs of words, if they were asked for."""

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The words that are aligned."""
        return [(self.source[i].text, self.target[j].text) for i, j, _ in self.links]

    @property
    def matrix(self) -> NDArray[np.float32]:
        """Scores of all pairs of words, `[W_s, W_t]`.

        Raises:
            HeadscopeError: they were not asked for.

        """
        if self.scores is None:
            raise HeadscopeError("the reply has no matrix: ask for it (matrix=True)")
        return self.scores

    def to_pandas(self) -> DataFrame:
        """Return a table of the links, with the words' indices, texts and score.

        Raises:
            ImportError: pandas is not installed.

        """
        return frame(
            {
                "source": [link.source for link in self.links],
                "target": [link.target for link in self.links],
                "source_word": [source for source, _ in self.pairs],
                "target_word": [target for _, target in self.pairs],
                "score": [link.score for link in self.links],
            }
        )

    def _facts(self) -> list[str]:
        words = f"{len(self.source)} words to {len(self.target)}"
        first = " ".join(f"{source}–{target}" for source, target in self.pairs[:MAX_LINKS])
        return [self.method, words, f"{len(self.links)} links: {short(first)}"]

    def _repr_html_(self) -> str:
        """Return what a notebook shows: a row a link, shaded by its score."""
        about = f"{self.model} ({self.backend}), {self.method}"
        rows = [
            (escape(source), escape(target), shaded([(f"{link.score:.3f}", link.score, "")]))
            for (source, target), link in zip(self.pairs, self.links, strict=True)
        ]
        return box([lines([about]), table(("source", "target", "score"), rows)])

    def __str__(self) -> str:
        longest = max((len(source) for source, _ in self.pairs), default=0)
        return "\n".join(f"{source:{longest}}  {target}" for source, target in self.pairs)


def read_alignments(content: bytes, pairs: Sequence[Any]) -> list[Alignment]:
    """The reply of /align, an alignment a pair."""
    told = json.loads(content)
    named = {name: told[name] for name in ("model", "backend", "method")}
    every = zip(pairs, told["results"], strict=True)
    return [_alignment(named, result) for _, result in every]


def _alignment(named: Mapping[str, str], result: Mapping[str, Any]) -> Alignment:
    words, cut, matrix = result["words"], result["truncated"], result.get("matrix")
    source, target = ([AlignedWord(**one) for one in words[side]] for side in ("source", "target"))
    shape = len(source), len(target)
    return Alignment(
        **named,
        source=source,
        target=target,
        links=[Link(**one) for one in result["alignments"]],
        pharaoh=result["pharaoh"],
        truncated=(cut["source"], cut["target"]),
        scores=None if matrix is None else np.array(matrix, np.float32).reshape(shape),
    )
