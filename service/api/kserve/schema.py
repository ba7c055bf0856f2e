"""The JSON of an inference request.

Format: https://github.com/kserve/open-inference-protocol; its parameters carry the options of
/encode and /attention.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from model.artifact.pooling import PoolingName
from service.api.kserve.outputs import INPUT, OutputName
from service.api.native.indices import Indices
from service.api.native.texts import BackendName, StrictRequest
from service.errors import Unprocessable
from service.inference.tokenization.excerpt import Direction
from service.inference.tokenization.tokenizer import Options

_REFERRING = ("$defs", "$ref")
_NUMBERS = re.compile(r" *-?[0-9]{1,9}( *, *-?[0-9]{1,9})* *")


def _listed(value: Any) -> Any:
    """`2` and `"0,2"` → a list: many clients' parameters are numbers and texts alone."""
    if isinstance(value, str) and _NUMBERS.fullmatch(value):
        return [int(number) for number in value.split(",")]
    return [value] if type(value) is int else value


ListedIndices = Annotated[Indices, BeforeValidator(_listed)]


class InputParameters(StrictRequest):
    """How an input is sent."""

    binary_data_size: int | None = Field(None, ge=0, description="Its bytes after the JSON.")
    content_type: Literal["str"] | None = Field(None, description="As clients of MLServer say it.")


class InputTensor(StrictRequest):
    """The texts: `[B]` or `[B, 1]`, or pairs of them, `[B, 2]`."""

    name: Literal["text"]
    datatype: Literal["BYTES"]
    shape: Annotated[
        list[Annotated[int, Field(ge=1, le=2**31 - 1)]], Field(min_length=1, max_length=2)
    ]
    parameters: InputParameters = InputParameters()
    data: list[Any] | None = Field(None, description="Row-major, flat or nested as the shape is.")


class OutputParameters(StrictRequest):
    """How an output is wanted."""

    binary_data: bool | None = Field(None, description="After the JSON, or in it.")


class RequestedOutput(StrictRequest):
    """An output by its name."""

    name: OutputName
    parameters: OutputParameters = OutputParameters()


class InferParameters(StrictRequest):
    """The options of /encode and /attention, and the protocol's own."""

    binary_data_output: bool = Field(False, description="Of outputs that do not say it themselves.")
    timeout: int | None = Field(None, ge=0, description="Microseconds until the reply must begin.")
    truncate: bool = Field(False, description="Cut a text that is too long.")
    truncation_direction: Direction = Field("right", description="Which side is cut.")
    prompt_name: str | None = Field(None, description="A prefix of the checkpoint's own.")
    backend: BackendName | None = Field(None, description="Which engine answers.")
    layer: int = Field(-1, description="Hidden state of `pooled` and `embeddings`.")
    pooling: PoolingName | None = Field(None, description="The checkpoint's own by default.")
    normalize: bool | None = Field(None, description="The checkpoint's own by default.")
    dimensions: int | None = Field(None, ge=1, description="Leading features that are kept.")
    layers: ListedIndices = Field(None, description="Of `attention`; all by default.")
    heads: ListedIndices = Field(None, description="Of `attention`; all by default.")

    @property
    def options(self) -> Options:
        """How the texts are tokenised."""
        naming = f"{INPUT}[{{}}]"
        return Options(self.truncate, self.truncation_direction, self.prompt_name, naming=naming)


class InferRequest(StrictRequest):
    """The JSON of a request."""

    id: str | None = Field(None, max_length=1024)
    inputs: Annotated[list[InputTensor], Field(min_length=1, max_length=1)]
    outputs: Annotated[list[RequestedOutput], Field(max_length=16)] = Field(
        default=[], description="`pooled` by default."
    )
    parameters: InferParameters = InferParameters()

    @property
    def wanted(self) -> dict[OutputName, bool]:
        """The outputs asked for, and whether each is binary.

        Raises:
            Unprocessable: one is asked for twice.

        """
        default = self.parameters.binary_data_output
        asked = {
            output.name: default if output.parameters.binary_data is None
            else output.parameters.binary_data
            for output in self.outputs
        }  # fmt: skip
        if len(asked) != len(self.outputs):
            raise Unprocessable("outputs: one is listed twice")
        return asked or {"pooled": default}


def inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema whose definitions stand where they are used, as a part of a document needs."""
    definitions = schema.get("$defs", {})

    def walk(node: Any) -> Any:
        if isinstance(node, list):
            return [walk(one) for one in node]
        if not isinstance(node, dict):
            return node
        kept = {name: walk(value) for name, value in node.items() if name not in _REFERRING}
        if "$ref" in node:
            return walk(definitions[node["$ref"].rpartition("/")[2]]) | kept
        return kept

    found: dict[str, Any] = walk(schema)
    return found
