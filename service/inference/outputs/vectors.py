"""`tokens`, `pooled` and `windows`: hidden states of a text, and a vector of it.

Notation: S tokens of one text, H hidden size, D features of a vector.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from model.artifact.manifest import Manifest
from model.artifact.vectors import TextVectors
from service.engines.contract import Output as Computed
from service.engines.contract import Pooling, TextTask
from service.inference.encoding import EncodeOptions
from service.inference.outputs.field import VECTOR, Field, TextArrays
from service.inference.outputs.output import Output
from service.inference.tokenization.text import Text


class TokensOutput(Output):
    """Hidden states `[S, H]`."""

    name = "tokens"
    fields = (
        Field(
            "embeddings",
            "float32",
            ("S", "H"),
            "`[S][H]`, or `[layers][S][H]`.",
            ragged=True,
            layered=True,
        ),
    )
    needs_states = True

    def reduce(self, text: Text, computed: Computed) -> TextArrays:
        """Return the requested states."""
        del text
        return {"embeddings": self.of_states(computed.hidden)}


class PooledOutput(Output):
    """Vector `[D]`: pooled by the engine, or here if several hidden states are requested."""

    name = "pooled"
    fields = (
        Field(
            "pooled", VECTOR, ("D",), "`[D]`, or `[layers][D]`.", layered=True, column="embedding"
        ),
    )

    def __init__(self, options: EncodeOptions, manifest: Manifest, vectors: TextVectors) -> None:
        """Choose the pooling."""
        super().__init__(options, manifest, vectors)
        self.use = options.vectors_use(manifest)
        self._pooling = Pooling(self.states[-1], options.pooling or vectors.pooling)
        self.needs_states = bool(options.layers)
        self.pooling = None if self.needs_states else self._pooling
        self.by_text = not (self.needs_states or manifest.sentence.include_prompt)

    def extend(self, task: TextTask, text: Text) -> None:
        """Leave the prompt's tokens out of the pooling."""
        task.pooling = self.of_text(text)

    def of_text(self, text: Text) -> Pooling:
        """Return the pooling of a text, at the last requested hidden state."""
        first = text.prompt_tokens and text.first_pooled(self.manifest.sentence)
        return replace(self._pooling, first_token=first) if first else self._pooling

    def reduce(self, text: Text, computed: Computed) -> TextArrays:
        """Return the raw vector."""
        if computed.pooled is not None:
            return {"pooled": computed.pooled}
        pooling = self.of_text(text)
        states = [
            self.vectors.pool(state, pooling.mode, pooling.first_token, ())
            for state in computed.hidden
        ]
        return {"pooled": self.of_states(states)}


class WindowsOutput(Output):
    """Number of windows in which a text was encoded, of a request that allows them."""

    name = "windows"
    implied = True
    fields = (Field("windows", "int32", (), "With `overflow` `windows`: their number.", fact=True),)
    use = None

    def reduce(self, text: Text, computed: Computed) -> TextArrays:
        """Return the number of windows of a text."""
        del computed
        return {"windows": np.array(text.windows, np.int32)}
