"""Request body of `POST /encode`, and its options of the requested arrays.

Notation: L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from model.artifact.vectors import TextVectors
from model.config.encoder import EncoderConfig
from model.numerics.pooling import PoolingName
from model.numerics.quantization import VectorType
from service.api.native.indices import (
    Ablate,
    EncoderHead,
    Indices,
    ablated_heads,
    selected_indices,
)
from service.api.native.long_text_fields import LongTextRequest
from service.api.native.texts import no_duplicates
from service.api.native.vector_outputs import OutputName, vector_bytes, with_vectors
from service.api.wire.media import JSON_BYTES_PER_FLOAT
from service.errors import Unprocessable
from service.inference.core import Inference
from service.inference.encoding import EncodeOptions
from service.inference.tokenization.tokenized import TokenizedText
from service.inference.vector_types import quantization_of


class EncodeRequest(LongTextRequest):
    """Request body of `POST /encode`."""

    takes_files = True
    outputs: Annotated[
        list[OutputName],
        Field(min_length=1, max_length=4),
        AfterValidator(no_duplicates),
    ] = Field(
        default=["tokens", "pooled"],
        description="Token vectors, one pooled vector, a sparse vector, and the vectors of late "
        "interaction, as far as the model has them; none by default with `spans` or `chunk`.",
    )
    layer: int = Field(
        -1, description="Hidden state: 0 = embeddings … L = last; negative from the end."
    )
    layers: Indices = Field(None, description="Hidden states, in this order, in place of `layer`.")
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

    def arrays(self, inference: Inference) -> EncodeOptions:
        """Return the options of the requested arrays, checked before any input is read."""
        options = encode_options(self, inference.config, inference.vectors)
        options = with_vectors(options, self.outputs, self.prompt_name, inference.manifest)
        inference.require_options(options)
        self.check_long_texts(options, inference.sentence)
        return options

    def vector_bytes(
        self,
        inference: Inference,
        options: EncodeOptions,
        texts: Sequence[TokenizedText],
        *,
        binary: bool,
    ) -> int:
        """Return the predicted bytes of all vectors in a reply.

        Args:
            inference: model or tower that encodes the inputs.
            options: options of `arrays`.
            texts: texts or pictures of the request.
            binary: whether the reply is in safetensors.

        """
        as_base64 = self.encoding_format == "base64"
        float_bytes = 4 if binary else 6 if as_base64 else JSON_BYTES_PER_FLOAT
        features = inference.vectors.kept(options.pooling, options.dimensions)
        size = float_bytes * floats(options, texts, inference.config.hidden_size, features)
        return size + vector_bytes(options.head, texts, float_bytes)


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
    default = plain or "outputs" in request.model_fields_set
    outputs = request.outputs if default else ()
    options = EncodeOptions(
        layer=request.layer % states,
        tokens="tokens" in outputs,
        pooled="pooled" in outputs,
        pooling=request.pooling,
        dimensions=request.dimensions,
        normalize=request.normalize,
        layers=() if layers is None else selected_indices("layers", layers, states, ""),
        ablated=ablated_heads(request.ablate, "encoder", config, ""),
    )
    if request.vector_type != "float32" and plain and not options.pooled:
        raise Unprocessable(
            f"vector_type {request.vector_type} is a type of pooled vectors: add `pooled` to "
            "`outputs`"
        )
    quantization = quantization_of(
        request.vector_type, request.vector_ranges, options, vectors, states - 1
    )
    return replace(options, quantization=quantization)


def floats(
    options: EncodeOptions, texts: Sequence[TokenizedText], hidden_size: int, vector_size: int
) -> int:
    """Return the number of floats in the vectors of a reply."""
    tokens = sum(len(text.input_ids) for text in texts)
    pooled = options.pooled * len(texts) + sum(len(spans.ranges) for spans in options.spans)
    of_state = options.tokens * tokens * hidden_size + pooled * vector_size
    return len(options.states) * of_state
