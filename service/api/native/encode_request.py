"""Request body of `POST /encode`, and its options of the requested arrays.

Notation: L layers.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, PlainValidator, model_validator
from pydantic.json_schema import WithJsonSchema

from model.artifact.vectors import TextVectors
from model.config.encoder import EncoderConfig
from model.numerics.late_interaction import ROLES
from model.numerics.pooling import PoolingName
from model.numerics.quantization import VectorType
from service.api.native.texts import (
    Ablate,
    EncoderHead,
    Indices,
    TextRequest,
    ablated_heads,
    selected_indices,
)
from service.api.requests import Distinct, StrictRequest
from service.api.wire.pictures import wrong
from service.api.wire.schemas import schema
from service.errors import Unprocessable
from service.inference.core import Inference
from service.inference.encoding import EncodeOptions
from service.inference.outputs.chunks import ChunkKind, ChunkOptions, chunks_of
from service.inference.outputs.declared import NAMED
from service.inference.outputs.spans import MOST_SPANS, check_pooling, spans_of
from service.inference.plan import Plan
from service.inference.tokenization.inputs import Input, Picture
from service.inference.tokenization.text import Offset, Text
from service.inference.tokenization.tokenizer import Options


def _spans(value: object) -> list[list[Offset]]:
    """Validate a list of [start, end] for each input, up to the first invalid item."""
    if not isinstance(value, list) or not all(isinstance(of_text, list) for of_text in value):
        raise wrong("a list of [start, end] for each input is needed")
    if sum(map(len, value)) > MOST_SPANS:
        raise wrong(f"at most {MOST_SPANS} spans are taken in a request")
    return [
        [_span(*item, index) for item in enumerate(of_text)] for index, of_text in enumerate(value)
    ]


def _span(place: int, span: object, index: int) -> Offset:
    match span:
        case [start, end] if type(start) is type(end) is int:
            return start, end
    raise wrong(f"spans[{index}][{place}] is not [start, end] of two integers")


Spans = Annotated[
    list[list[Offset]], PlainValidator(_spans), WithJsonSchema(schema([[[int, int]]]))
]


def check_texts(inputs: Sequence[Input]) -> None:
    """Raise if an input is a pair or a picture."""
    for index, given in enumerate(inputs):
        if isinstance(given, Picture):
            raise Unprocessable(
                f"inputs[{index}] is a picture; spans and chunks are of texts: send it without"
            )
        if not isinstance(given, str):
            raise Unprocessable(
                f"inputs[{index}] is a pair; spans and chunks are of one text: send its texts as "
                "two inputs"
            )


Overflow = Literal["error", "truncate", "windows"]


class Chunk(StrictRequest):
    """Chunks into which each input is cut."""

    by: ChunkKind = Field(
        description="Where chunks end if they can: between words, sentences or paragraphs."
    )
    size: int = Field(256, ge=1, description="Maximum tokens of a chunk, without special tokens.")
    overlap: int | None = Field(
        None,
        ge=0,
        description="Maximum tokens that a chunk repeats of the one before it, at most half of "
        "`size`; an eighth by default.",
    )
    late: bool = Field(
        True,
        description="Whether the token vectors of the whole text are pooled; else each chunk is "
        "encoded alone.",
    )

    @model_validator(mode="after")
    def _smaller_overlap(self) -> Chunk:
        """Reject an overlap of more than half a chunk, which would repeat all text."""
        if 2 * (self.overlap or 0) > self.size:
            raise wrong(f"chunk: overlap {self.overlap} is more than half of size {self.size}")
        return self

    @property
    def options(self) -> ChunkOptions:
        """Kind and sizes of the chunks."""
        overlap = self.size // 8 if self.overlap is None else self.overlap
        return ChunkOptions(self.by, self.size, overlap)


if TYPE_CHECKING:
    OutputName = str
else:
    OutputName = Literal[NAMED]


class EncodeRequest(TextRequest):
    """Request body of `POST /encode`."""

    takes_files = True
    overflow: Overflow | None = Field(
        None,
        description="What happens to a text beyond the model's limit: an error (the default), "
        "truncation as by `truncate`, or overlapping windows.",
    )
    spans: Spans | None = Field(
        None,
        description="Start and end of each span of each input, in code points; the token vectors "
        "of each span are pooled to one vector (late chunking).",
    )
    chunk: Chunk | None = Field(
        None, description="Cut each input into chunks, whose vectors are returned as of `spans`."
    )
    outputs: Distinct[OutputName] = Field(
        default=["tokens", "pooled"],
        description="Token vectors, one pooled vector, a sparse vector, and the vectors of late "
        "interaction, as far as the model has them; none by default with `spans` or `chunk`.",
    )
    layer: int = Field(
        -1, description="Hidden state: 0 = embeddings … L = last; negative from the end."
    )
    layers: Indices | None = Field(
        None, description="Hidden states, in this order, in place of `layer`."
    )
    ablate: Ablate[EncoderHead] = Field(None, description="Heads whose output is set to zero.")
    pooling: PoolingName | None = Field(None, description="The checkpoint's default.")
    normalize: bool | None = Field(
        None, description="L2-normalise the pooled vector; the checkpoint's default."
    )
    dimensions: int | None = Field(
        None,
        ge=1,
        description="Keep the first n features of the pooled vector, then normalise; the "
        "checkpoint's `truncate_dim` by default.",
    )
    vector_type: VectorType = Field(
        "float32",
        description="Type of the pooled vector, as of sentence-transformers' "
        "`quantize_embeddings`; binary vectors have eight features in a byte.",
    )
    vector_ranges: Annotated[list[list[float]], Field(min_length=2, max_length=2)] | None = Field(
        None,
        description="Lowest and highest value of each feature, for int8 and uint8; the artifact's "
        "by default, over its calibration texts.",
    )
    encoding_format: Literal["float", "base64"] = Field(
        "float",
        description="base64 = little-endian float32, or the `vector_type`, row-major, one string "
        "for each array.",
    )

    @model_validator(mode="after")
    def _one_overflow(self) -> EncodeRequest:
        """Reject a `truncate` that contradicts `overflow`."""
        cuts = self.overflow == "truncate"
        if self.overflow and (self._keeps if cuts else self.truncate):
            raise wrong(
                f'truncate {str(self.truncate).lower()} and overflow "{self.overflow}" exclude '
                "each other: leave out `truncate`"
            )
        return self

    @property
    def alone(self) -> ChunkOptions | None:
        """Chunks that are encoded alone; None if there are none."""
        return self.chunk.options if self.chunk and not self.chunk.late else None

    @property
    def _keeps(self) -> bool:
        """Whether `truncate` is set to false."""
        return "truncate" in self.model_fields_set and not self.truncate

    @property
    def options(self) -> Options:
        """Tokenisation options of the texts."""
        truncate = self.truncate or self.overflow == "truncate"
        return replace(super().options, truncate=truncate, windows=self.overflow == "windows")

    def check_long_texts(self, plan: Plan) -> None:
        """Raise if spans or chunks do not fit the other fields, before the texts are tokenised."""
        if self.spans is not None and self.chunk:
            raise Unprocessable("spans and chunk exclude each other: leave one out")
        if self.spans is not None and len(self.spans) != len(self.inputs):
            raise Unprocessable(
                f"spans has {len(self.spans)} lists for {len(self.inputs)} inputs: send one each"
            )
        whole = ("outputs", "overflow", "truncate") if self.alone else ()
        if given := [name for name in whole if name in self.model_fields_set]:
            raise Unprocessable(
                f"{given[0]} is of a pass over the whole text, and with `late` false each "
                f"chunk is encoded alone: leave it out"
            )
        if self.spans is not None or self.chunk:
            check_texts(self.inputs)
            if not self.alone:
                check_pooling(plan.mode)

    async def find_spans(self, texts: Sequence[Text]) -> None:
        """Set the spans or chunks of each text, which are found in a thread."""
        if self.spans is not None:
            spans = await asyncio.to_thread(spans_of, self.texts, self.spans, texts)
        elif self.chunk:
            spans = await asyncio.to_thread(chunks_of, self.texts, texts, self.chunk.options)
        else:
            return
        for text, own in zip(texts, spans, strict=True):
            text.spans = own

    @property
    def texts(self) -> list[str]:
        """Inputs that are single texts, as all are beside spans and chunks."""
        return [given for given in self.inputs if isinstance(given, str)]

    def planned(self, inference: Inference) -> tuple[Plan, Options]:
        """Return the plan of the requested arrays, and the options of tokenisation.

        Both are checked, before any input is read. The model keeps them for requests with equal
        fields beside the inputs, unless the fields are of the inputs or of any size.
        """
        key = None
        names = len(self.prompt_name or "") + len(self.task or "")
        if names <= MOST_CHARACTERS and _OF_ANY_REQUEST.issuperset(self.model_fields_set):
            key = (*self.outputs, *_DECIDING(self))
            if found := inference.plans.get(key):
                return found
        plan = inference.plan(encode_options(self, inference.config, inference.vectors))
        self.check_long_texts(plan)
        found = plan, plan.limited(self.options)
        if key:
            inference.keep(key, found)
        return found


MOST_CHARACTERS = 256
"""Maximum number of characters of the names of a prompt and a task with which a plan is kept."""
_DECIDING = operator.attrgetter(
    *("truncate", "truncation_direction", "prompt_name", "task", "overflow", "layer", "pooling"),
    *("normalize", "dimensions", "vector_type"),
)
"""Function that returns the fields beside `outputs` that decide a plan."""
_OF_ANY_REQUEST = frozenset(EncodeRequest.model_fields) - {
    *("spans", "chunk", "layers", "ablate", "vector_ranges")
}


def encode_options(
    request: EncodeRequest, config: EncoderConfig, vectors: TextVectors
) -> EncodeOptions:
    """Return the options of a request, with non-negative layer indices."""
    states, size = config.num_hidden_layers + 1, vectors.size(request.pooling)
    layers = request.layers
    if layers is not None and "layer" in request.model_fields_set:
        raise Unprocessable(f"layer {request.layer} and layers {layers} exclude each other")
    if not -states <= request.layer < states:
        raise Unprocessable(f"layer {request.layer} is not in {-states} … {states - 1}")
    if request.dimensions is not None and request.dimensions > size:
        raise Unprocessable(f"dimensions {request.dimensions} is more than the model's {size}")
    plain = request.spans is None and request.chunk is None
    outputs = request.outputs if plain or "outputs" in request.model_fields_set else []
    implied = ["spans"] * (not plain) + ["windows"] * (request.overflow == "windows")
    if request.vector_type != "float32" and plain and "pooled" not in outputs:
        raise Unprocessable(
            f"vector_type {request.vector_type} is a type of pooled vectors: add `pooled` to "
            "`outputs`"
        )
    return EncodeOptions(
        (*outputs, *implied),
        layer=request.layer,
        pooling=request.pooling,
        dimensions=request.dimensions,
        normalize=request.normalize,
        layers=() if layers is None else selected_indices("layers", layers, states, ""),
        ablated=ablated_heads(request.ablate, "encoder", config, ""),
        vector_type=request.vector_type,
        vector_ranges=request.vector_ranges,
        role=request.prompt_name if request.prompt_name in ROLES else None,
    )
