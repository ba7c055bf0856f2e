"""The reply of `POST /align`.

Notation: W_s and W_t words of a source and a target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from service.api.wire.media import JSON_BYTES_PER_FLOAT, Part
from service.api.wire.notices import notice_field
from service.inference.alignment.matching import Method
from service.inference.alignment.pairs import Pair, PreparedPairs
from service.inference.alignment.word_alignments import WordAlignment
from service.inference.alignment.words import AlignedText

CHARACTER_BYTES = 6
"""Most bytes of a character in JSON."""
LINK_BYTES = 80
"""Of an alignment in JSON, and in Pharaoh's form, with indices of six digits."""
WORD_BYTES = 48
"""Of a word in JSON beside its characters."""
RESULT_BYTES = 256
"""Of a result beside its lists, and of a reply beside its results."""


@dataclass(frozen=True)
class AlignmentReply:
    """What a reply is made of beside the alignments."""

    model: str
    prepared: PreparedPairs
    method: Method
    matrix: bool
    """Whether the scores of all pairs of words are wanted."""

    @property
    def most_bytes(self) -> int:
        """Bytes that it has at most."""
        return RESULT_BYTES + sum(map(self._result_bytes, self.prepared.pairs))

    def written(self, found: Sequence[WordAlignment]) -> list[Part]:
        """It in JSON, a result at a time, as nothing else runs meanwhile."""
        prepared = self.prepared
        names = {"model": self.model, "backend": prepared.texts.engine, "method": self.method}
        head = names | notice_field(prepared.texts.timings.notices) | {"results": []}
        parts: list[Part] = [orjson.dumps(head).removesuffix(b"]}")]
        every = zip(prepared.pairs, prepared.truncated, found, strict=True)
        for number, one in enumerate(every):
            written = orjson.dumps(self._result(*one), option=orjson.OPT_SERIALIZE_NUMPY)
            parts.append(b"," + written if number else written)
        usage = {"inputs": len(prepared.pairs), "tokens": prepared.tokens}
        parts.append(b'],"usage":' + orjson.dumps(usage) + b"}")
        return parts

    def _result_bytes(self, pair: Pair) -> int:
        words = sum(WORD_BYTES * len(one.words) + CHARACTER_BYTES * len(one.text) for one in pair)
        cells = len(pair.source.words) * len(pair.target.words) if self.matrix else 0
        links = LINK_BYTES * pair.most_links(self.method)
        return RESULT_BYTES + words + links + JSON_BYTES_PER_FLOAT * cells

    def _result(self, pair: Pair, cut: tuple[bool, bool], found: WordAlignment) -> dict[str, Any]:
        links = found.links.tolist()
        result = {
            "words": {"source": _words(pair.source), "target": _words(pair.target)},
            "alignments": [
                {"source": i, "target": j, "score": score}
                for (i, j), score in zip(links, found.scores, strict=True)
            ],
            "pharaoh": " ".join(f"{i}-{j}" for i, j in links),
            "truncated": {"source": cut[0], "target": cut[1]},
        }
        if self.matrix:
            matrix = np.zeros((len(pair.source.words), len(pair.target.words)), np.float32)
            matrix[np.ix_(pair.source.worded, pair.target.worded)] = found.words
            result["matrix"] = matrix
        return result


def _words(one: AlignedText) -> list[dict[str, Any]]:
    places = one.words.tolist()
    return [{"text": one.text[start:end], "start": start, "end": end} for start, end in places]
