"""Request schemas of `POST /attention` and `/attention/scores`, and the selected maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field
from pydantic.json_schema import WithJsonSchema

from model.artifact.signature import MapKind
from model.config.encoder import EncoderConfig, PatchLayout
from service.api.native.texts import (
    Ablate,
    EncoderHead,
    Head,
    Indices,
    Targets,
    TextRequest,
    ablated_heads,
    selected_heads,
    selected_index,
)
from service.api.requests import Distinct, distinct, list_of
from service.api.wire.pictures import wrong
from service.api.wire.schemas import any_of, schema
from service.engines.contract import Ablated
from service.errors import Unprocessable
from service.inference.attention.map_parts import MapPart, Resampling
from service.inference.attention.maps import ArrayName, AttentionSelection, LayersAndHeads, Lengths
from service.inference.core import Inference
from service.inference.tokenization.text import Text, Tower
from service.inference.tokenization.tokenizer import Options

Place: TypeAlias = int | str | tuple[int, int]
"""Number of a token, name of a special token, or row and column of a patch."""


def _place(item: object, _: int) -> Place:
    match item:
        case int() | str() if not isinstance(item, bool):
            return item
        case [row, column] if type(row) is type(column) is int:
            return row, column
    raise wrong(
        "a token is an integer, and of a picture also [row, column] or a special token's name"
    )


Places = Annotated[
    list[Place],
    list_of(_place, "a list with at least one token is needed"),
    AfterValidator(distinct),
    WithJsonSchema(schema([any_of(int, [int, int], str), ...], uniqueItems=True)),
]


def token_numbers(
    name: str, places: Sequence[Place] | None, patches: PatchLayout | None
) -> tuple[int, ...] | None:
    """Return places as numbers of tokens; numbers themselves are unchanged."""
    if places is None:
        return None
    return tuple(
        place if isinstance(place, int) else _of_picture(name, place, patches) for place in places
    )


def _of_picture(name: str, place: str | tuple[int, int], patches: PatchLayout | None) -> int:
    """Return the number of a special token or a patch; rows and columns may be negative."""
    if patches is None:
        raise Unprocessable(
            f"{name}: names and [row, column] are for pictures; give the numbers of the text's "
            "tokens"
        )
    names = patches.special_tokens
    if isinstance(place, str):
        if place not in names:
            listed = ", ".join(names) or "none: give [row, column]"
            raise Unprocessable(f"{name}: the special tokens of a picture are {listed}")
        return names.index(place)
    grid = patches.rows, patches.columns
    for axis, number, size in zip(("row", "column"), place, grid, strict=True):
        if not -size <= number < size:
            raise Unprocessable(
                f"{name}: {axis} {number} is not in {-size} … {size - 1}, the {axis}s of a picture"
            )
    row, column = (number % size for number, size in zip(place, grid, strict=True))
    return len(names) + row * patches.columns + column


ENCODER: tuple[MapKind, ...] = ("encoder",)
DECODER: tuple[MapKind, ...] = ("decoder", "cross")
"""Kinds of maps of the decoder, in the order of a reply."""


class AttentionRequest(TextRequest):
    """Request body of `POST /attention`."""

    takes_files = True
    targets: Targets | None = Field(
        None, description="Decoder output to score for each input: one text for each input."
    )
    maps: Distinct[MapKind] | None = Field(
        None, description="By default `cross` with targets, else `encoder`."
    )
    layers: Indices | None = Field(
        None, description="0 … L−1, negative from the end; all by default."
    )
    heads: Indices | None = Field(
        None, description="0 … N−1, negative from the end; all by default."
    )
    include: Distinct[ArrayName] = Field(
        default=["weights"],
        description="Maps, statistics of each map, attention rollout of the encoder, norms of "
        "each head's contributions, norm rollout of the encoder, and the log-probability of each "
        "target token.",
    )
    queries: Places | None = Field(
        None,
        description="Rows of each map, 0 … S−1, negative from the end of each text; of a picture "
        "also patches as [row, column] and special tokens by name; all by default.",
    )
    keys: Places | None = Field(None, description="Columns of each map, likewise.")
    max_size: int | None = Field(
        None,
        ge=1,
        description="Maximum rows and columns of each map: larger maps are max-pooled, and `bins` "
        "holds the token range of each cell.",
    )
    enlarge: Resampling | None = Field(
        None,
        description="Enlarge the maps of `queries` to the pixels of each picture: "
        "`[layers][heads][queries][height][width]`, 0 outside the crop.",
    )
    tower: Tower | None = Field(
        None, description="Tower of a model with two; the inputs have to be for it."
    )
    top_k: int | None = Field(
        None, ge=1, description="Return only the k largest weights of each query."
    )
    ablate: Ablate[Head] = Field(None, description="Heads whose output is set to zero.")
    dtype: Literal["float32", "float16"] = Field("float32", description="For the binary format.")

    @property
    def target_options(self) -> Options:
        """Tokenisation options of the targets."""
        naming = "targets[{}]"
        return Options(self.truncate, self.truncation_direction, naming=naming, targets=True)


def attention_selection(
    request: AttentionRequest, config: EncoderConfig, decoder: EncoderConfig | None = None
) -> AttentionSelection:
    """Return the selection of a request, with non-negative indices."""
    _check_part(request)
    patches = config.embeddings.patches
    if request.enlarge and not patches:
        raise Unprocessable("enlarge is for pictures, and these inputs are texts: leave it out")
    stack = _decoder(request, decoder)
    kinds = request.maps or ["cross" if stack else "encoder"]
    for name in ("rollout", "norm_rollout"):
        if name in request.include and "encoder" not in kinds:
            raise Unprocessable(f"{name} is of the encoder, whose maps `maps` leaves out")
    maps: dict[MapKind, LayersAndHeads] = {}
    ablated: dict[MapKind, Ablated] = {}
    for name, own, of_stack in (("encoder", config, ENCODER), ("decoder", stack, DECODER)):
        if own is None:
            continue
        whose = f" of the {name}" if stack else ""
        if wanted := [kind for kind in of_stack if kind in kinds]:
            selected = selected_heads(request.layers, request.heads, own, whose)
            maps |= dict.fromkeys(wanted, selected)
        for kind in of_stack:
            ablated[kind] = ablated_heads(request.ablate, kind, own, whose)
    return AttentionSelection(
        maps,
        frozenset(request.include),
        MapPart(
            token_numbers("queries", request.queries, patches),
            token_numbers("keys", request.keys, patches),
            request.max_size,
            request.enlarge,
        ),
        request.top_k,
        ablated,
        targets=stack is not None,
    )


def check_tower(tower: Tower | None, inference: Inference) -> None:
    """Reject a tower that is not the tower of the request's inputs."""
    if tower is None or tower == inference.tower:
        return
    if inference.tower is None:
        raise Unprocessable("tower: this model has one encoder; leave it out")
    raise Unprocessable(
        f"tower: the inputs are for the {inference.tower} tower; leave `tower` out, or send inputs "
        "for the other"
    )


def check_places(selection: AttentionSelection, texts: Sequence[Text]) -> None:
    """Reject queries and keys that do not exist in a text or are listed twice."""
    asked = ("queries", selection.part.queries), ("keys", selection.part.keys)
    checked: set[tuple[str, int]] = set()
    for index, text in enumerate(texts if selection.part.chosen else ()):
        for kind in selection.maps:
            of_target = kind != "encoder", kind == "decoder"
            for (name, values), size, read_by_decoder in zip(
                asked, Lengths.of(text).shape(kind), of_target, strict=True
            ):
                if values is not None and (name, size) not in checked:
                    whose = f"{'targets' if read_by_decoder else 'inputs'}[{index}]"
                    _check_axis(name, values, size, whose)
                    checked.add((name, size))


def _check_part(request: AttentionRequest) -> None:
    """Reject a map part or `top_k` without maps, or a map part that contradicts `top_k`."""
    weights = "weights" in request.include
    given = {
        "queries": request.queries,
        "keys": request.keys,
        "max_size": request.max_size,
        "enlarge": request.enlarge,
    }
    asked = [name for name, value in given.items() if value is not None]
    if asked and not (weights or "norms" in request.include):
        raise Unprocessable(f"{asked[0]} is of weights and norms, which `include` leaves out")
    if request.enlarge and asked != ["queries", "enlarge"]:
        raise Unprocessable(
            "enlarge needs `queries`, whose maps are enlarged, and no keys or max_size"
        )
    if request.top_k is None:
        return
    if asked not in ([], ["queries"]):
        raise Unprocessable(f"{asked[-1]} and top_k both choose keys: leave one of them out")
    if not weights:
        raise Unprocessable("top_k is of the weights, which `include` leaves out")


def _decoder(request: AttentionRequest, decoder: EncoderConfig | None) -> EncoderConfig | None:
    """Return the decoder's configuration if the request has targets, else None."""
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


def _check_axis(name: str, values: Sequence[int], size: int, text: str) -> None:
    """Reject token indices that are out of range for `size` tokens, or listed twice."""
    for value in min(values), max(values):
        if not -size <= value < size:
            raise Unprocessable(
                f"{name}: {value} is not in {-size} … {size - 1}, the tokens of {text}"
            )
    if len({value % size for value in values}) != len(values):
        raise Unprocessable(
            f"{name}: one of {text} is listed twice (negative ones count from the end)"
        )


class HeadScoresRequest(TextRequest):
    """Request body of `POST /attention/scores`."""

    layer: int = Field(description="Layer 0 … L−1, negative from the end.")
    head: int = Field(description="Head 0 … N−1, negative from the end.")
    queries: Places | None = Field(
        None,
        description="Query tokens, 0 … S−1, negative from the end of each text; of a picture also "
        "patches as [row, column] and special tokens by name; all by default.",
    )
    keys: Places | None = Field(
        None, description="Key tokens, counted as `queries`; all by default."
    )
    ablate: Ablate[EncoderHead] = Field(
        None, description="Heads of the encoder whose output is set to zero."
    )


def head_selection(request: HeadScoresRequest, config: EncoderConfig) -> AttentionSelection:
    """Return the selection of the requested head and tokens, with non-negative head indices."""
    layer = selected_index("layer", request.layer, config.num_hidden_layers)
    head = selected_index("head", request.head, config.num_attention_heads)
    patches = config.embeddings.patches
    return AttentionSelection(
        {"encoder": ((layer,), (head,))},
        part=MapPart(
            token_numbers("queries", request.queries, patches),
            token_numbers("keys", request.keys, patches),
        ),
        ablated={"encoder": ablated_heads(request.ablate, "encoder", config, "")},
    )
