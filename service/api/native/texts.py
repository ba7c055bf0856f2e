"""Fields of every native request and reply with texts, and indices of layers and heads.

Notation: B texts, T tokens of all texts, S tokens of one text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated, Literal, Self, TypeVar

import numpy as np
import orjson
from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator
from pydantic.json_schema import WithJsonSchema

from model.artifact.signature import MapKind
from model.config.encoder import EncoderConfig
from service.api.requests import StrictRequest, distinct, list_of
from service.api.wire.bodies import FIRST_FRAME
from service.api.wire.json_pieces import as_json, json_pieces
from service.api.wire.media import Unwritten
from service.api.wire.pictures import ONE_FIELD, closed_object, element, loaded, wrong
from service.api.wire.replies import WARNED, warning_field
from service.api.wire.route import ApiExchange, ModelRequest
from service.api.wire.schemas import Schema, any_of, named, schema
from service.engines.contract import Ablated
from service.errors import Unprocessable
from service.inference.attention.maps import LayersAndHeads
from service.inference.outputs.field import Array, bounds
from service.inference.timings import NO_WARNINGS, Warnings
from service.inference.tokenization.inputs import Input, Picture
from service.inference.tokenization.text import Text, Tower
from service.inference.tokenization.tokenizer import Options
from service.inference.tokenization.truncation import Direction


def _elements(value: object) -> list[Input]:
    """Validate inputs that may be objects with a text or a picture, up to the first invalid item.

    A list without such objects is either of texts or of pairs.
    """
    values = [value] if isinstance(value, str | dict | Picture) else value
    if not isinstance(values, list):
        raise wrong("a text, a list of texts or a list of pairs is needed")
    if not values:
        raise wrong("at least one text is needed")
    kinds = {*map(type, values)}
    if kinds == {str}:
        return [*values]
    mixed = any(issubclass(kind, dict | Picture) for kind in kinds)
    texts, pairs = mixed or isinstance(values[0], str), mixed or not isinstance(values[0], str)
    inputs: list[Input] = []
    for index, item in enumerate(values):
        match item:
            case str() if texts:
                inputs.append(item)
            case [str(first), str(second)] if pairs:
                inputs.append((first, second))
            case Picture():
                inputs.append(item)
            case dict():
                inputs.append(element(item, f"inputs[{index}]"))
            case _:
                wanted = "no text" if not pairs else "neither a text nor a pair"
                if mixed:
                    wanted = f"neither a text, a pair nor a picture: {ONE_FIELD}"
                raise wrong(f"inputs[{index}] is {wanted}")
    return inputs


_ANIMATED = "Take the first frame of an animated file, which is refused otherwise."
_FRAME = schema((bool, _ANIMATED), default=False)
_ADDRESS = "A data URL of a picture, or its address if `--image-hosts` lists the host."
OBJECTS = [
    closed_object(text=(str, "A text.")),
    closed_object(image=(str, "A picture's file in base64, or as a data URL.")),
    closed_object(image_url=(str, _ADDRESS)),
]
"""JSON schemas of an object with a text or a picture."""
for _picture in OBJECTS[1:]:
    _picture["properties"][FIRST_FRAME] = _FRAME
_EXAMPLE = "The animal didn't cross the street because it was too tired"
_PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mP4z8AAAAMBAQD3A0FDAAAAAElFTkSuQmCC"
)
"""PNG with a red pixel, in base64."""
Inputs = Annotated[
    list[Input],
    PlainValidator(_elements),
    WithJsonSchema(
        schema(
            any_of(
                *(str, [str, ...], [[str, str], ...], *OBJECTS),
                [any_of(str, [str, str], *OBJECTS), ...],
            ),
            examples=[_EXAMPLE, [{"text": "a red square"}, {"image": _PIXEL}]],
        )
    ),
]


BackendName = Literal["onnx", "torch"]
TOKEN_BYTES, TEXT_BYTES = 64, 256
"""Predicted bytes of a token (piece, id, offsets, segment) and of a text's names in a reply."""


def _target(value: object, index: int) -> str:
    if not isinstance(value, str):
        raise wrong(f"targets[{index}] is no text")
    return value


Targets = Annotated[
    list[str],
    list_of(_target, "a text, or a list of texts, is needed"),
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    WithJsonSchema(any_of(str, [str, ...])),
]


class TextRequest(ModelRequest, StrictRequest):
    """Fields of every request with texts."""

    inputs: Inputs = Field(description="Texts, pairs of texts, or pictures.")
    truncate: bool = Field(False, description="Truncate long texts instead of rejecting them.")
    truncation_direction: Direction = Field("right", description="Side to cut.")
    prompt_name: str | None = Field(
        None,
        description="Name of a prompt in the checkpoint's configuration; an empty name disables "
        "the default prompt.",
    )
    task: str | None = Field(
        None,
        description="Task of a model that has several (jina-embeddings-v3): selects its weights, "
        "and the task's prompt unless prompt_name is set.",
    )
    backend: BackendName | None = Field(
        None, description="Engine that computes the reply; there is no fallback."
    )

    @property
    def options(self) -> Options:
        """Tokenisation options of the texts."""
        return Options(self.truncate, self.truncation_direction, self.prompt_name, self.task)

    async def with_pictures(self, exchange: ApiExchange) -> Self:
        """Return a request whose pictures have their files; errors as for `loaded`."""
        if {*map(type, self.inputs)} <= {str, tuple}:  # texts and pairs alone
            return self
        return self.model_copy(update={"inputs": await loaded(self.inputs, exchange)})


_SIZE = attrgetter("size")


def targets_of(texts: Sequence[Text]) -> list[Text]:
    """Return the targets of texts; none without targets."""
    return [text.target for text in texts if text.target]


def usage(texts: Sequence[Text], *, pairs: bool = False) -> dict[str, int]:
    """Return the number of inputs, which are texts or `pairs`, and of tokens of all texts."""
    tokens = sum(map(_SIZE, texts))
    if texts[0].target:  # which all texts have then
        tokens += sum(map(_SIZE, targets_of(texts)))
    return {"inputs": len(texts) // 2 if pairs else len(texts), "tokens": tokens}


def text_fields(text: Text) -> dict[str, object]:
    """Return the fields of a text and its target in a JSON reply."""
    fields = {
        "tokens": text.tokens,
        "token_ids": text.input_ids,
        "offsets": text.offsets,
        "segment_ids": text.segments,
        "truncated": text.truncated,
    }
    if view := text.picture:
        fields |= {"grid": view.grid, "size": view.size, "crop": view.crop}
    if text.tower:
        fields["tower"] = text.tower
    if target := text.target:
        fields |= {
            "target_tokens": target.tokens,
            "target_token_ids": target.input_ids,
            "target_offsets": target.offsets,
            "target_truncated": target.truncated,
        }
    return fields


def text_bytes(texts: Sequence[Text]) -> int:
    """Return the predicted bytes of all texts' fields (`text_fields`) in a reply."""
    count = 2 * len(texts) if texts[0].target else len(texts)
    return TOKEN_BYTES * usage(texts)["tokens"] + TEXT_BYTES * count


def text_tensors(texts: Sequence[Text]) -> dict[str, Array]:
    """Return the tensors of all texts and targets in a binary reply."""
    segments = np.concatenate([text.segments for text in texts]).astype(np.int32)
    tensors = {**_tensors(texts), "segment_ids": segments}
    if targets := targets_of(texts):
        tensors |= {f"target_{name}": tensor for name, tensor in _tensors(targets).items()}
    return tensors


def _tensors(texts: Sequence[Text]) -> dict[str, Array]:
    return {
        "cu_seqlens": bounds([text.size for text in texts]),
        "token_ids": np.concatenate([text.input_ids for text in texts]).astype(np.int32),
        "truncated": np.array([text.truncated for text in texts], np.uint8),
    }


@dataclass(frozen=True, slots=True)
class Envelope:
    """Fields of a reply around its results."""

    model: str
    backend: str
    texts: Sequence[Text]
    """Texts of all results."""
    fields: Mapping[str, object] = field(default_factory=dict)
    """Further fields: `layers` of /encode, `layers` and `heads` of /attention."""
    warnings: Warnings = NO_WARNINGS
    pairs: bool = False
    """Whether each input is two of the texts."""

    @property
    def names(self) -> dict[str, object]:
        """JSON fields before the results."""
        names: dict[str, object] = {"model": self.model, "backend": self.backend, **self.fields}
        return names if self.warnings is NO_WARNINGS else names | warning_field(self.warnings)

    def opening(self) -> bytes:
        """Return the JSON up to the first result."""
        return as_json(self.names)[:-1] + b',"results":['

    def closing(self) -> bytes:
        """Return the JSON after the last result."""
        return b'],"usage":' + as_json(usage(self.texts, pairs=self.pairs)) + b"}"

    def pieces(self, results: Iterable[Mapping[str, object]]) -> Unwritten:
        """Yield a JSON reply by the members of each result."""
        yield self.opening()
        for number, members in enumerate(results):
            if number:
                yield b","
            yield from json_pieces(members)
        yield self.closing()

    def whole(self, results: Iterable[Mapping[str, object]]) -> bytes:
        """Return a small JSON reply by the members of each result."""
        content = {
            **self.names,
            "results": [*results],
            "usage": usage(self.texts, pairs=self.pairs),
        }
        return orjson.dumps(content, np.ascontiguousarray, orjson.OPT_SERIALIZE_NUMPY)

    def metadata(self) -> dict[str, str]:
        """Return the `__metadata__` of a binary reply, with lists as JSON."""
        texts, targets = self.texts, targets_of(self.texts)
        lists = dict(self.fields) | {
            "tokens": [text.tokens for text in texts],
            "offsets": [text.offsets for text in texts],
            "usage": usage(texts, pairs=self.pairs),
            **warning_field(self.warnings),
        }
        more: dict[str, object] = {}
        if targets:
            more["target_tokens"] = [target.tokens for target in targets]
            more["target_offsets"] = [target.offsets for target in targets]
        views = [text.picture for text in texts]
        for name in ("grid", "size", "crop") if any(views) else ():
            more[name] = [getattr(view, name) if view else None for view in views]
        if texts[0].tower:
            more["tower"] = [text.tower for text in texts]
        return _encoded(lists) | {"model": self.model, "backend": self.backend} | _encoded(more)


def _encoded(lists: Mapping[str, object]) -> dict[str, str]:
    return {name: orjson.dumps(value).decode() for name, value in lists.items()}


USAGE = named("Usage", {"inputs": int, "tokens": int})
TOKENS = {"tokens": [str], "token_ids": [int], "offsets": [[int, int]], "truncated": bool}
"""Fields of a text in every reply."""
TEXT = {
    **TOKENS,
    "segment_ids": [int],
    "grid?": ([int, int], "Of a picture: rows, columns."),
    "size?": ([int, int], "Of a picture: width and height in pixels, as it is displayed."),
    "crop?": (
        [float, float, float, float],
        "Left, top, right and bottom of the part that the model sees, in pixels.",
    ),
    "tower?": (Tower, "Tower of a model with two towers."),
}
"""Fields of `text_fields`, without targets."""


def nested(kind: type, depth: int) -> object:
    """Return the form of lists in lists, of values of a kind."""
    return [nested(kind, depth - 1)] if depth else kind


def reply(name: str, fields: dict[str, object]) -> Schema:
    """Return the schema of a reply with these fields between its names and its usage."""
    return named(name, {"model": str, "backend": str, **fields, "usage": USAGE, **WARNED})


T = TypeVar("T")


def _index(value: object, _: int) -> int:
    if type(value) is not int:
        raise wrong("a list of integers is needed")
    return value


INDEX_LIST = schema([int, ...], uniqueItems=True)
"""JSON schema of a list of distinct integers."""
Indices = Annotated[
    list[int],
    list_of(_index, "a list with at least one integer is needed"),
    AfterValidator(distinct),
    WithJsonSchema(INDEX_LIST),
]


class Head(StrictRequest):
    """Head of a layer; negative indices count from the end."""

    layer: int
    head: int
    map: MapKind = Field("encoder", description="Attention of the head: encoder, decoder or cross.")


class EncoderHead(StrictRequest):
    """Head of a layer of the encoder; negative indices count from the end."""

    layer: int
    head: int
    map: Literal["encoder"] = Field("encoder", description="Only the encoder's heads.")


AnyHead = TypeVar("AnyHead", Head, EncoderHead)
Ablate = Annotated[list[AnyHead], Field(min_length=1, max_length=4096)] | None


def ablated_heads(
    asked: Sequence[Head] | Sequence[EncoderHead] | None,
    kind: MapKind,
    config: EncoderConfig,
    whose: str,
) -> Ablated:
    """Return the ablated heads of a kind of maps, as non-negative layer and head indices."""
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    ablated = tuple(
        (
            selected_index("ablate: layer", head.layer, layers, whose),
            selected_index("ablate: head", head.head, heads, whose),
        )
        for head in asked or ()
        if head.map == kind
    )
    return _distinct("ablate", ablated)


def selected_indices(
    name: str, asked: Sequence[int] | None, size: int, whose: str
) -> tuple[int, ...]:
    """Return the requested indices, non-negative and in order; all without a request."""
    if asked is None:
        return tuple(range(size))
    return _distinct(name, tuple(selected_index(name, index, size, whose) for index in asked))


def selected_heads(
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    config: EncoderConfig,
    whose: str = "",
) -> LayersAndHeads:
    """Return the requested layers and heads of a stack, like `selected_indices`."""
    return (
        selected_indices("layers", layers, config.num_hidden_layers, whose),
        selected_indices("heads", heads, config.num_attention_heads, whose),
    )


def selected_index(name: str, index: int, size: int, whose: str = "") -> int:
    """Return an index as a non-negative number; negative indices count from the end."""
    if not -size <= index < size:
        raise Unprocessable(f"{name}: {index} is not in {-size} … {size - 1}{whose}")
    return index % size


def _distinct(name: str, values: tuple[T, ...]) -> tuple[T, ...]:
    if len(set(values)) != len(values):
        raise Unprocessable(f"{name}: one is listed twice (negative ones count from the end)")
    return values
