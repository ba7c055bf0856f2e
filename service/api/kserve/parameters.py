"""Conversion of a request's parameters to options of vectors and selections of maps."""

from __future__ import annotations

from collections.abc import Sequence

from service.api.kserve.outputs import ATTENTION, HEAD_VECTORS, VECTORS
from service.api.kserve.schema import InferParameters, InferRequest
from service.api.native.attention.selection import AttentionRequest, attention_selection
from service.api.native.encode_request import EncodeRequest, encode_options
from service.api.native.vector_outputs import OutputName, with_vectors
from service.errors import Unprocessable
from service.inference.attention.selection import AttentionSelection
from service.inference.core import Inference
from service.inference.encoding import EncodeOptions


def vector_options(body: InferRequest, inference: Inference) -> EncodeOptions | None:
    """Return the options of the vectors; None if no vectors are requested."""
    given, wanted = body.parameters, body.wanted
    vectors = [name for name in VECTORS if name in wanted]
    if not vectors:
        _refuse_set(given, ("layer", "pooling", "normalize", "dimensions"), " or ".join(VECTORS))
    outputs: list[OutputName] = ["tokens" if n == "embeddings" else "pooled" for n in vectors]
    outputs += dict.fromkeys(HEAD_VECTORS[name] for name in wanted if name in HEAD_VECTORS)
    if not outputs:
        return None
    asked = EncodeRequest.model_construct(
        inputs=[],
        outputs=outputs,
        layer=given.layer,
        pooling=given.pooling,
        normalize=given.normalize,
        dimensions=given.dimensions,
    )
    options = encode_options(asked, inference.config, inference.vectors)
    return with_vectors(options, outputs, given.prompt_name, inference.manifest)


def map_selection(body: InferRequest, inference: Inference) -> AttentionSelection | None:
    """Return the selection of maps; None if no maps are requested."""
    given, wanted = body.parameters, body.wanted
    if not any(name in wanted for name in ATTENTION):
        _refuse_set(given, ("layers", "heads"), ATTENTION[0])
        return None
    inference.require_maps()
    asked = AttentionRequest.model_construct(inputs=[], layers=given.layers, heads=given.heads)
    return attention_selection(asked, inference.config)


def _refuse_set(given: InferParameters, names: Sequence[str], output: str) -> None:
    for name in names:
        if name in given.model_fields_set:
            raise Unprocessable(f"parameters.{name} applies to {output}, which is not requested")
