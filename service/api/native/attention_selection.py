"""Request schema of `POST /attention`, and the selection of maps that it requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from model.artifact.signature import MapKind
from model.config.encoder import EncoderConfig
from service.api.native.indices import Ablate, Head, Indices, ablated_heads, selected_indices
from service.api.native.map_parts import check_part
from service.api.native.targets import Targets
from service.api.native.texts import TextRequest, no_duplicates
from service.errors import Unprocessable
from service.inference.attention.map_parts import MapPart
from service.inference.attention.selection import AttentionSelection, TargetSelection
from service.inference.tokenization.tokenizer import Options


class AttentionRequest(TextRequest):
    """Request body of `POST /attention`."""

    targets: Targets = Field(
        None, description="Decoder output to score for each input: one text for each input."
    )
    maps: (
        Annotated[list[MapKind], Field(min_length=1, max_length=3), AfterValidator(no_duplicates)]
        | None
    ) = Field(None, description="By default `cross` with targets, else `encoder`.")
    layers: Indices = Field(None, description="0 … L−1, negative from the end; all by default.")
    heads: Indices = Field(None, description="0 … N−1, negative from the end; all by default.")
    include: Annotated[
        list[Literal["weights", "stats", "rollout", "norms", "norm_rollout", "logprobs"]],
        Field(min_length=1, max_length=6),
        AfterValidator(no_duplicates),
    ] = Field(
        default=["weights"],
        description="Maps, statistics of each map, attention rollout of the encoder, norms of "
        "each head's contributions, norm rollout of the encoder, and the log-probability of each "
        "target token.",
    )
    queries: Indices = Field(
        None,
        description="Rows of each map, 0 … S−1, negative from the end of each text; all by "
        "default.",
    )
    keys: Indices = Field(None, description="Columns of each map, likewise.")
    max_size: int | None = Field(
        None,
        ge=1,
        description="Maximum rows and columns of each map: larger maps are max-pooled, and `bins` "
        "holds the token range of each cell.",
    )
    top_k: int | None = Field(
        None, ge=1, description="Return only the k largest weights of each query."
    )
    ablate: Ablate[Head] = Field(None, description="Heads whose output is set to zero.")
    dtype: Literal["float32", "float16"] = Field("float32", description="For the binary format.")

    @property
    def target_options(self) -> Options:
        """Tokenisation options of the targets."""
        return Options(self.truncate, self.truncation_direction, naming="targets[{}]")


def attention_selection(
    request: AttentionRequest, config: EncoderConfig, decoder: EncoderConfig | None = None
) -> AttentionSelection:
    """Return the maps that a request selects, with non-negative indices.

    Args:
        request: body of the request.
        config: encoder's configuration.
        decoder: decoder's configuration, if the model has a decoder.

    Raises:
        Unprocessable: a layer or head does not exist or is listed twice, `top_k` or a map part is
            set without maps, or a decoder's output is requested without a decoder or targets.

    """
    weights = "weights" in request.include
    part = map_part(request)
    check_part(part, maps=weights or "norms" in request.include, top_k=request.top_k)
    if request.top_k is not None and not weights:
        raise Unprocessable("top_k is of the weights, which `include` leaves out")
    stack = _decoder(request, decoder)
    maps = request.maps or ["cross" if stack else "encoder"]
    for name in ("rollout", "norm_rollout"):
        if name in request.include and "encoder" not in maps:
            raise Unprocessable(f"{name} is of the encoder, whose maps `maps` leaves out")
    whose = " of the encoder" if stack else ""
    return AttentionSelection(
        layers=_layers(request, config, whose) if "encoder" in maps else (),
        heads=_heads(request, config, whose) if "encoder" in maps else (),
        weights=weights,
        statistics="stats" in request.include,
        rollout="rollout" in request.include,
        top_k=request.top_k,
        ablated=ablated_heads(request.ablate, "encoder", config, whose),
        target=_of_target(request, maps, stack) if stack else None,
        norms="norms" in request.include,
        norm_rollout="norm_rollout" in request.include,
        part=part,
    )


def map_part(request: AttentionRequest) -> MapPart:
    """Return the part of each map that a request selects."""
    queries, keys = (
        None if asked is None else tuple(asked) for asked in (request.queries, request.keys)
    )
    return MapPart(queries, keys, request.max_size)


def _decoder(request: AttentionRequest, decoder: EncoderConfig | None) -> EncoderConfig | None:
    """Return the decoder's configuration if the request has targets, else None.

    Raises:
        Unprocessable: a decoder's output is requested without a decoder or targets, or the number
            of targets differs from the number of inputs.

    """
    asked = [f"maps: {kind}" for kind in request.maps or () if kind != "encoder"]
    asked += [f"ablate: map {head.map}" for head in request.ablate or () if head.map != "encoder"]
    asked += ["include: logprobs"] if "logprobs" in request.include else []
    asked = ["targets"] if request.targets else asked
    if asked and decoder is None:
        raise Unprocessable(f"{asked[0]}: this model has no decoder")
    if asked and not request.targets:
        raise Unprocessable(f"{asked[0]} needs `targets`, one text an input")
    if request.targets and len(request.targets) != len(request.inputs):
        raise Unprocessable(
            f"{len(request.targets)} targets of {len(request.inputs)} inputs: each input has one"
        )
    return decoder if request.targets else None


def _of_target(
    request: AttentionRequest, maps: Sequence[MapKind], decoder: EncoderConfig
) -> TargetSelection:
    """Return the selection of the decoder's maps and log-probabilities."""
    kinds: Sequence[MapKind] = ("decoder", "cross")
    wanted = tuple(kind for kind in kinds if kind in maps)
    whose = " of the decoder"
    return TargetSelection(
        maps=wanted,
        layers=_layers(request, decoder, whose) if wanted else (),
        heads=_heads(request, decoder, whose) if wanted else (),
        logprobs="logprobs" in request.include,
        ablated=ablated_heads(request.ablate, "decoder", decoder, whose),
        cross_ablated=ablated_heads(request.ablate, "cross", decoder, whose),
    )


def _layers(request: AttentionRequest, config: EncoderConfig, whose: str) -> tuple[int, ...]:
    return selected_indices("layers", request.layers, config.num_hidden_layers, whose)


def _heads(request: AttentionRequest, config: EncoderConfig, whose: str) -> tuple[int, ...]:
    return selected_indices("heads", request.heads, config.num_attention_heads, whose)
