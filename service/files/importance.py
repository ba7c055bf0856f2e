"""Table of the importance of each head over a file.

Michel et al. 2019 (https://arxiv.org/abs/1905.10650) ablate one head at a time. Here the loss is
1 − cosine between a text's vectors with and without the head.

Notation: L layers, N heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from service.files.fields import FIELDS
from service.files.parts import Part


def importance_table(parts: Sequence[Part]) -> str:
    """Return the mean over all texts as a table: a line for each layer, a column for each head.

    Args:
        parts: parts of a run of the kind "importance", at least one with texts.

    """
    (field,) = FIELDS["importance"]
    texts = sum(part.texts for part in parts)
    total = sum(
        part.array(field.name).sum(axis=0, dtype=np.float64) for part in parts if part.texts
    )
    mean = np.asarray(total) / texts
    lines = [f"mean of 1 - cosine without each head, over {texts} texts"]
    lines.append("layer \\ head" + "".join(f"{head:>9}" for head in range(mean.shape[1])))
    lines += [
        f"{layer:>12}" + "".join(f"{value:>9.5f}" for value in row)
        for layer, row in enumerate(mean)
    ]
    return "\n".join(lines)
