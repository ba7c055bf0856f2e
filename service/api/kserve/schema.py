"""JSON schema of inference requests.

Format: https://github.com/kserve/open-inference-protocol; its parameters carry the options of
/encode and /attention.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic.json_schema import WithJsonSchema

from model.numerics.pooling import PoolingName
from service.api.kserve.outputs import INPUT, OutputName
from service.api.native.indices import INDEX_LIST, Indices
from service.api.native.texts import BackendName, StrictRequest
from service.errors import Unprocessable
from service.inference.tokenization.tokenizer import Options
from service.inference.tokenization.truncation import Direction

_NUMBERS = r"^ *-?[0-9]{1,9}( *, *-?[0-9]{1,9})* *$"


def _listed(value: object) -> object:
    """Convert `2` and `"0,2"` to a list: some clients send parameters as numbers or strings."""
    if isinstance(value, str) and re.fullmatch(_NUMBERS, value):
        return [int(number) for number in value.split(",")]
    return [value] if type(value) is int else value


ListedIndices = Annotated[
    Indices,
    BeforeValidator(_listed),
    WithJsonSchema(
        {
            "anyOf": [
                INDEX_LIST,
                {"type": "integer"},
                {"type": "string", "pattern": _NUMBERS},
                {"type": "null"},
            ]
        }
    ),
]


class InputParameters(StrictRequest):
    """Encoding of an input."""

    binary_data_size: int | None = Field(None, ge=0, description="Bytes of it after the JSON.")
    content_type: Literal["str"] | None = Field(None, description="Sent by clients of MLServer.")


class InputTensor(StrictRequest):
    """Texts of shape `[B]` or `[B, 1]`, or pairs of shape `[B, 2]`."""

    name: Literal["text"]
    datatype: Literal["BYTES"]
    shape: Annotated[
        list[Annotated[int, Field(ge=1, le=2**31 - 1)]], Field(min_length=1, max_length=2)
    ]
    parameters: InputParameters = InputParameters()
    data: list[Any] | None = Field(None, description="Values in row-major order, flat or nested.")


class OutputParameters(StrictRequest):
    """Encoding of an output."""

    binary_data: bool | None = Field(None, description="After the JSON, or in the JSON.")


class RequestedOutput(StrictRequest):
    """Requested output, by its name."""

    name: OutputName
    parameters: OutputParameters = OutputParameters()


class InferParameters(StrictRequest):
    """Options of /encode and /attention, and parameters of the protocol."""

    binary_data_output: bool = Field(False, description="Default `binary_data` of the outputs.")
    timeout: int | None = Field(None, ge=0, description="Microseconds until the reply must begin.")
    truncate: bool = Field(False, description="Truncate long texts.")
    truncation_direction: Direction = Field("right", description="Side to cut.")
    prompt_name: str | None = Field(None, description="Name of a prompt of the checkpoint.")
    backend: BackendName | None = Field(None, description="Engine that computes the reply.")
    layer: int = Field(-1, description="Hidden state of `pooled` and `embeddings`.")
    pooling: PoolingName | None = Field(None, description="The checkpoint's default.")
    normalize: bool | None = Field(None, description="The checkpoint's default.")
    dimensions: int | None = Field(None, ge=1, description="Number of leading features to keep.")
    layers: ListedIndices = Field(None, description="Layers of `attention`; all by default.")
    heads: ListedIndices = Field(None, description="Heads of `attention`; all by default.")

    @property
    def options(self) -> Options:
        """Tokenisation options of the texts."""
        naming = f"{INPUT}[{{}}]"
        return Options(self.truncate, self.truncation_direction, self.prompt_name, naming=naming)


class InferRequest(StrictRequest):
    """JSON body of an inference request."""

    id: str | None = Field(None, max_length=1024)
    inputs: Annotated[list[InputTensor], Field(min_length=1, max_length=1)]
    outputs: Annotated[list[RequestedOutput], Field(max_length=16)] = Field(
        default=[], description="`pooled` by default."
    )
    parameters: InferParameters = InferParameters()

    @property
    def wanted(self) -> dict[OutputName, bool]:
        """Requested outputs, and whether each is binary."""
        default = self.parameters.binary_data_output
        asked = {
            output.name: default if output.parameters.binary_data is None
            else output.parameters.binary_data
            for output in self.outputs
        }  # fmt: skip
        if len(asked) != len(self.outputs):
            raise Unprocessable("outputs: one is listed twice")
        return asked or {"pooled": default}
