"""`tokens`: a hidden state of each token."""

from __future__ import annotations

from service.engines.contract import Output as Computed
from service.inference.outputs.field import Field, TextArrays
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
