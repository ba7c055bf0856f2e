"""Declaration of an output: its arrays, whether a model offers it, what it needs, its reduction.

Notation: S tokens of one text, H hidden size, D features of a vector.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from model.artifact.manifest import Manifest
from model.artifact.vectors import TextVectors
from model.config.precision import Use
from service.engines.contract import Floats, Pooling, TextTask
from service.engines.contract import Output as Computed
from service.inference.encoding import EncodeOptions
from service.inference.outputs.field import Field, TextArrays
from service.inference.tokenization.text import Text


class Output(ABC):
    """Output of each text. An instance has the checked options of a request, and no text."""

    name: ClassVar[str]
    fields: ClassVar[tuple[Field, ...]]
    implied: ClassVar[bool] = False
    """Whether other fields of a request imply the output, and `outputs` does not name it."""
    remedy: ClassVar[str] = ""
    """Name of the vectors that other models lack, and the models to choose."""
    use: Use | None = "heads"
    """Use of an artifact that its verification must have passed; None for facts of the text."""
    needs_states = False
    """Whether the engine returns the requested hidden states."""
    pooling: Pooling | None = None
    """Pooling by the engine; None without."""
    max_tokens: int | None = None
    """Maximum tokens of a text; the model's limit when None."""
    windowed = True
    """Whether it can be computed of the states of several windows of a text."""
    by_text = False
    """Whether `extend` has to be called for each text."""

    def __init__(self, options: EncodeOptions, manifest: Manifest, vectors: TextVectors) -> None:
        """Raise `Unprocessable` if the options do not fit the output."""
        self.options, self.manifest, self.vectors = options, manifest, vectors
        self.states = options.states(manifest.config.num_hidden_layers)
        self.sizes: Mapping[str, int] = {
            "H": vectors.hidden_size,
            "D": vectors.kept(options.pooling, options.dimensions),
            "2": 2,
        }

    @classmethod
    def offered(cls, manifest: Manifest) -> bool:
        """Return whether a model has the output."""
        del manifest
        return True

    def extend(self, task: TextTask, text: Text) -> None:
        """Add to the forward pass of a text what depends on the text; only if `by_text`."""
        del task, text

    @abstractmethod
    def reduce(self, text: Text, computed: Computed) -> TextArrays:
        """Return the arrays of a text, called in the thread that computed them.

        Vectors of the requested type are raw: the plan completes them.
        """

    def entries(self, texts: Sequence[Text]) -> int:
        """Return the predicted number of entries of the first axis of a ragged field."""
        return sum([text.size for text in texts])

    def shape(self, field: Field, texts: Sequence[Text]) -> tuple[int, ...]:
        """Return the predicted shape of the tensor of all texts, of one hidden state."""
        if field.bounds_of:
            return (len(texts) + 1,)
        sizes = [self.sizes[axis] for axis in field.axes[field.ragged :]]
        return (self.entries(texts) if field.ragged else len(texts), *sizes)

    def nbytes(self, texts: Sequence[Text], number: float) -> float:
        """Return the predicted bytes of the vectors in a reply, by the bytes of a float."""
        floats = sum(
            (len(self.states) if field.layered else 1) * math.prod(self.shape(field, texts))
            for field in self.fields
            if not (field.fact or field.bounds_of)
        )
        return number * floats

    def of_states(self, arrays: Sequence[Floats]) -> Floats:
        """Return the array of each requested hidden state, stacked if there may be several."""
        return np.stack(arrays) if self.options.layers else arrays[0]
