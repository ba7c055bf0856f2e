"""Forms of replies that several dialects have: errors, lists of vectors, usage, models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import orjson
from starlette.responses import Response

from model.artifact.manifest import MANIFEST
from model.numerics.quantization import Quantization
from service.api.wire.json_pieces import base64_pieces, json_pieces
from service.api.wire.media import JSON, JSON_BYTES_PER_FLOAT, Unwritten
from service.api.wire.replies import Responses, error_reply
from service.api.wire.route import ApiExchange
from service.api.wire.schemas import any_of, named
from service.engines.contract import Floats
from service.errors import NoTaskHead, ServiceError, Unprocessable
from service.inference.timings import Timings
from service.models.served import ServedModel

BAD_REQUEST = 400
UNSATISFIABLE = {Unprocessable.status: BAD_REQUEST, NoTaskHead.status: BAD_REQUEST}
"""Native status → status of requests that cannot be satisfied, in Cohere's and vLLM's APIs."""


def json_error(
    error: ServiceError, body: object, statuses: Mapping[int, int] | None = None
) -> Response:
    """Return the reply of an error, with its status in a dialect by the native status."""
    response = error_reply(error, orjson.dumps(body), JSON)
    response.status_code = (statuses or {}).get(error.status, error.status)
    return response


NESTED_FIELDS = {"error": {"message": str, "type?": str, "param?": str, "code?": int | str}}
"""Message and kind of an error, and the field that caused it, in OpenAI's form."""
NESTED_ERROR = named("NestedError", NESTED_FIELDS)


def errors_of_both(errors: Responses, others: Responses) -> Responses:
    """Return the documented errors of a path that two dialects share, in the form of either."""
    both = dict[int | str, dict[str, Any]]()
    for status in errors.keys() & others.keys():
        forms = [own[status].get("content", {}).get(JSON) for own in (errors, others)]
        if all(forms):
            form = any_of(*(one["schema"] for one in forms if one))
            both[status] = {**errors[status], "content": {JSON: {"schema": form}}}
    return {**others, **errors, **both}


USAGE = named("TokenUsage", {"prompt_tokens": int, "total_tokens": int})


def usage(timings: Timings) -> dict[str, object]:
    """Return the content of `USAGE`."""
    return {"prompt_tokens": timings.tokens, "total_tokens": timings.tokens}


EMBEDDING_ITEM = named(
    "EmbeddingItem", {"object": "embedding", "embedding": any_of([float], str), "index": int}
)
"""Schema of a vector, and of the index of its text in the request."""


CREATED = (
    "Unix time in seconds at which the artifact's manifest, or the config of a checkpoint that is "
    "not loaded, was written."
)
"""Description of the last value of `listed_models`."""


async def listed_models(exchange: ApiExchange) -> list[tuple[str, ServedModel | None, int]]:
    """Return the names that a request can choose, the default first, with models that are loaded.

    The third value is `CREATED`.
    """
    unloaded = await exchange.service.control.on_demand()
    return [
        *(
            (name, model, int(model.artifact.path(MANIFEST).stat().st_mtime))
            for name, model in exchange.service.models.by_name.items()
        ),
        *((name, None, created) for name, created in unloaded.items()),
    ]


EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
INTEGER_BYTES = 5
"""Maximum bytes of an 8-bit number and its comma in JSON."""
BASE64_BYTES_PER_FLOAT = 6
"""Bytes of a float32 in base64, rounded up."""
_UNIT = np.array([[-128.5], [126.5]], np.float32) / np.float32(127)
"""Range of features whose 256 buckets are the integers nearest to 127 x."""


@dataclass(frozen=True)
class VectorForm:
    """Conversion and serialisation of one vector type."""

    convert: Quantization
    feature_bytes: float
    """Predicted bytes of a feature in JSON."""
    as_base64: bool = False

    def pieces(self, vector: Floats) -> Unwritten:
        """Return a vector `[D]` or matrix as JSON."""
        converted = self.convert(vector)
        return base64_pieces(converted) if self.as_base64 else json_pieces(converted)


FORMS: dict[EmbeddingType, VectorForm] = {
    "float": VectorForm(Quantization(), JSON_BYTES_PER_FLOAT),
    "int8": VectorForm(Quantization("int8", _UNIT), INTEGER_BYTES),
    "uint8": VectorForm(Quantization("uint8", _UNIT), INTEGER_BYTES),
    "binary": VectorForm(Quantization("binary"), INTEGER_BYTES / 8),
    "ubinary": VectorForm(Quantization("ubinary"), INTEGER_BYTES / 8),
    "base64": VectorForm(Quantization(), BASE64_BYTES_PER_FLOAT, as_base64=True),
}


@dataclass(frozen=True)
class ListForm:
    """JSON format of a list of vectors in one dialect."""

    opening: bytes
    before: bytes = b""
    """JSON of an item before its vector, with `%d` for its index."""
    after: bytes = b""
    closing: Callable[[Timings], Mapping[str, object]] | None = None
    """Function from the timings of the request to the fields after the list."""
    form: VectorForm = FORMS["float"]
    item_bytes: int = 64
    """Predicted bytes of an item, without its vector."""
    kept: int | None = None
    """Number of leading features to write; all if None."""

    def pieces(self, vectors: Sequence[Floats], timings: Timings) -> Unwritten:
        """Yield the JSON reply."""
        opening = self.opening
        for number, vector in enumerate(vectors):
            index = b"%d" % number
            yield opening + self.before.replace(b"%d", index)
            yield from self.form.pieces(vector if self.kept is None else vector[: self.kept])
            yield self.after.replace(b"%d", index)
            opening = b","
        yield b"]" if self.closing is None else b"]," + orjson.dumps(self.closing(timings))[1:]
