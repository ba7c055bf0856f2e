"""`windows`: the number of windows in which a text was encoded; see `long_texts`."""

from __future__ import annotations

import numpy as np

from service.engines.contract import Output as Computed
from service.inference.outputs.field import Field, TextArrays
from service.inference.outputs.output import Output
from service.inference.tokenization.text import Text


class WindowsOutput(Output):
    """Number of windows, of a request that allows them."""

    name = "windows"
    implied = True
    fields = (Field("windows", "int32", (), "With `overflow` `windows`: their number.", fact=True),)
    use = None

    def reduce(self, text: Text, computed: Computed) -> TextArrays:
        """Return the number of windows of a text."""
        del computed
        return {"windows": np.array(text.windows, np.int32)}
