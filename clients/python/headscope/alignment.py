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
"""Maximum number of links in the short form."""


class AlignedWord(NamedTuple):
    """Word and its position in its text, in code points."""

    text: str
    start: int
    end: int


class Link(NamedTuple):
    """Link between a word of the source and a word of the target, by their indices."""

    source: int
    target: int
    score: float


@dataclass(frozen=True, eq=False, repr=False)
class Alignment(Shown):
    """Alignment of a target's words with its source's words; `str` has one line per pair."""

    model: str
    backend: str
    method: str
    source: list[AlignedWord]
    target: list[AlignedWord]
    links: list[Link]
    """Links in ascending order."""
    pharaoh: str
    """Links as `i-j`, separated by spaces."""
    truncated: tuple[bool, bool]
    """Whether the source and the target are truncated."""
    scores: NDArray[np.float32] | None
    """Scores of all pairs of words, if requested; None otherwise."""

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Texts of the aligned pairs of words."""
        return [(self.source[i].text, self.target[j].text) for i, j, _ in self.links]

    @property
    def matrix(self) -> NDArray[np.float32]:
        """Scores of all pairs of words, `[W_s, W_t]`.

        Raises:
            HeadscopeError: they were not requested.

        """
        if self.scores is None:
            raise HeadscopeError("the reply has no matrix: request it (matrix=True)")
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
        """Return the notebook's form: a row per link, shaded by its score."""
        about = f"{self.model} ({self.backend}), {self.method}"
        rows = [
            (escape(source), escape(target), shaded([(f"{link.score:.3f}", link.score, "")]))
            for (source, target), link in zip(self.pairs, self.links, strict=True)
        ]
        return box([lines([about]), table(("source", "target", "score"), rows)])

    def __str__(self) -> str:
        longest = max((len(source) for source, _ in self.pairs), default=0)
        return "\n".join(f"{source:{longest}}  {target}" for source, target in self.pairs)


def read_alignments(content: bytes, pairs: Sequence[object]) -> list[Alignment]:
    """Parse the reply of /align: one alignment per pair."""
    reply = json.loads(content)
    named = {name: reply[name] for name in ("model", "backend", "method")}
    results = zip(pairs, reply["results"], strict=True)
    return [_alignment(named, result) for _, result in results]


def _alignment(named: Mapping[str, str], result: Mapping[str, Any]) -> Alignment:
    words, cut, matrix = result["words"], result["truncated"], result.get("matrix")
    source, target = (
        [AlignedWord(**word) for word in words[side]] for side in ("source", "target")
    )
    shape = len(source), len(target)
    return Alignment(
        **named,
        source=source,
        target=target,
        links=[Link(**link) for link in result["alignments"]],
        pharaoh=result["pharaoh"],
        truncated=(cut["source"], cut["target"]),
        scores=None if matrix is None else np.array(matrix, np.float32).reshape(shape),
    )
