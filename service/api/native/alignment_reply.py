"""Reply of `POST /align`.

Notation: W_s and W_t words of a source and a target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import orjson

from service.api.wire.json_pieces import ITEMS, list_pieces, object_pieces
from service.api.wire.media import JSON_BYTES_PER_FLOAT, Unwritten
from service.api.wire.text_warnings import warning_field
from service.inference.alignment.matching import Method
from service.inference.alignment.pairs import Pair, PreparedPairs
from service.inference.alignment.word_alignments import WordAlignment
from service.inference.alignment.words import AlignedText

CHARACTER_BYTES = 6
"""Maximum bytes of a character in JSON."""
LINK_BYTES = 80
"""Maximum bytes of a link in JSON and in Pharaoh format, with six-digit indices."""
WORD_BYTES = 48
"""Maximum bytes of a word in JSON, without its characters."""
RESULT_BYTES = 256
"""Maximum bytes of a result without its lists, and of a reply without its results."""


@dataclass(frozen=True)
class AlignmentReply:
    """Serialisation of a reply from its alignments."""

    model: str
    prepared: PreparedPairs
    method: Method
    matrix: bool
    """Whether the reply includes the scores of all word pairs."""

    @property
    def most_bytes(self) -> int:
        """Maximum bytes of the reply."""
        return RESULT_BYTES + sum(map(self._result_bytes, self.prepared.pairs))

    def pieces(self, alignments: Sequence[WordAlignment]) -> Unwritten:
        """Write the reply as JSON."""
        prepared = self.prepared
        names = {"model": self.model, "backend": prepared.texts.engine, "method": self.method}
        head = names | warning_field(prepared.texts.timings.warnings) | {"results": []}
        yield orjson.dumps(head).removesuffix(b"]}")
        every = zip(prepared.pairs, prepared.truncated, alignments, strict=True)
        for number, columns in enumerate(every):
            if number:
                yield b","
            yield from object_pieces(self._result(*columns))
        usage = {"inputs": len(prepared.pairs), "tokens": prepared.tokens}
        yield b'],"usage":' + orjson.dumps(usage) + b"}"

    def _result_bytes(self, pair: Pair) -> int:
        words = sum(
            WORD_BYTES * len(text.words) + CHARACTER_BYTES * len(text.text) for text in pair
        )
        cells = len(pair.source.words) * len(pair.target.words) if self.matrix else 0
        links = LINK_BYTES * pair.most_links(self.method)
        return RESULT_BYTES + words + links + JSON_BYTES_PER_FLOAT * cells

    def _result(
        self, pair: Pair, cut: tuple[bool, bool], alignment: WordAlignment
    ) -> dict[str, object]:
        links = alignment.links.tolist()
        result: dict[str, object] = {
            "words": {"source": _words(pair.source), "target": _words(pair.target)},
            "alignments": list_pieces(
                {"source": i, "target": j, "score": score}
                for (i, j), score in zip(links, alignment.scores, strict=True)
            ),
            "pharaoh": _pharaoh(links),
            "truncated": {"source": cut[0], "target": cut[1]},
        }
        if self.matrix:
            matrix = np.zeros((len(pair.source.words), len(pair.target.words)), np.float32)
            matrix[np.ix_(pair.source.worded, pair.target.worded)] = alignment.words
            result["matrix"] = matrix
        return result


def _words(text: AlignedText) -> list[dict[str, object]]:
    places = text.words.tolist()
    return [{"text": text.text[start:end], "start": start, "end": end} for start, end in places]


def _pharaoh(links: Sequence[tuple[int, int]]) -> Unwritten:
    """Yield links in Pharaoh format, as a JSON string."""
    yield b'"'
    for start in range(0, len(links), ITEMS):
        written = " ".join(f"{i}-{j}" for i, j in links[start : start + ITEMS])
        yield (b" " if start else b"") + written.encode()
    yield b'"'
