"""Encoders by a running service, which send the inputs of a window in concurrent requests.

Notation: S tokens of one text, H hidden size, L layers, N heads.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from service.files.connection import (
    SAFETENSORS,
    Connection,
    RefusedRequest,
    ServiceFailure,
)
from service.files.options import (
    FIELDS,
    Array,
    Encoding,
    Kind,
    Outcome,
    Pending,
    Refused,
    TextArrays,
    UsageError,
    batches_by_length,
)
from service.files.pictures import read_picture
from service.inference.attention.statistics import shift
from service.inference.fingerprint import FINGERPRINT_HEADER
from service.inference.timings import NO_WARNINGS, Warnings

if TYPE_CHECKING:
    from service.files.connection import Connection, RefusedRequest

REQUESTS_AT_ONCE = 4
REQUEST_CHARACTERS = 2**15
"""Maximum characters of a request's texts, some dozens of batches of a service on a CPU."""
WINDOW_CHARACTERS = 32 * REQUEST_CHARACTERS
TOKENS_WINDOW_CHARACTERS = 4 * REQUEST_CHARACTERS
TOO_LARGE = frozenset({413, 422})
"""Statuses of requests that are split in halves, down to a single rejected text."""


class RemoteEncoder:
    """Encoder by the model of a service."""

    trial = "a text"
    """Input that the options are tried on."""
    request_size = REQUEST_CHARACTERS
    """Maximum size of a request's inputs; see `sizes`."""

    def __init__(
        self, connection: Connection, encoding: Encoding, say: Callable[[str], None]
    ) -> None:
        """Query the service's properties, and try the options on a text.

        `say` is called with a warning if replies have no fingerprint.
        """
        self._connection, self._encoding = connection, encoding
        try:
            info = self.encoder_info(connection.get("/info"))
            # a static embedding has no heads, and the service rejects the first
            self._shape = int(info.get("layers") or 1), int(info.get("heads") or 1)
            (tried,) = self._request([self.trial])
        except RefusedRequest as error:
            raise UsageError(f"{connection.url} refuses ({error.status}): {error}") from None
        connection.warnings.clear()  # drop the warnings of the trial text
        self._shapes = _shapes_of(encoding.kind, tried)
        if connection.fingerprint is None:
            say(
                f"{connection.url} answers without {FINGERPRINT_HEADER} (an older service, or a "
                "proxy that removes it): whether one model computes all texts is not checked"
            )
        self._most_texts = int(info.get("max_client_batch_size") or 1)
        self.identity: dict[str, object] = {
            "fingerprint": connection.fingerprint,
            "shapes": self._shapes,
            "model": info.get("artifact_sha256"),
            "engine": f"{info.get('engine')}, {info.get('provider')}",
            "max_tokens": info.get("max_input_length"),
            "version": info.get("version"),
            "url": True,
        }
        tokens = encoding.kind in ("tokens", "multivector")
        self.window_characters = TOKENS_WINDOW_CHARACTERS if tokens else WINDOW_CHARACTERS
        if encoding.kind == "importance":  # each window takes a request for every head
            heads = self._shape[0] * self._shape[1]
            self.window_characters = max(REQUEST_CHARACTERS, WINDOW_CHARACTERS // heads)
        self._threads = ThreadPoolExecutor(REQUESTS_AT_ONCE, "requests")

    @property
    def warnings(self) -> Warnings:
        """Warnings of the service about the texts computed so far."""
        return sum(self._connection.warnings, NO_WARNINGS)

    def begin(self, texts: Sequence[str]) -> Pending:
        """Send the texts in requests of similar length."""
        pending: Pending = []
        for batch in batches_by_length(self.sizes(texts), self.request_size) if texts else []:
            for first in range(0, len(batch), self._most_texts):
                places = batch[first : first + self._most_texts]
                inputs = [texts[place] for place in places]
                pending.append(self._threads.submit(self.send, places, inputs))
        return pending

    def encoder_info(self, info: dict[str, Any]) -> dict[str, Any]:
        """Return the properties of the encoder that reads the inputs."""
        return info

    def sizes(self, texts: Sequence[str]) -> list[int]:
        """Return the size of each input in a request: for texts their characters."""
        return [len(text) + 1 for text in texts]

    def inputs(self, texts: Sequence[str]) -> list[object]:
        """Return the inputs of a request."""
        return [*texts]

    def send(self, places: Sequence[int], texts: Sequence[str]) -> list[tuple[int, Outcome]]:
        """Return the outcomes of the texts of a request."""
        return self.halved(places, texts)

    def refused(self, error: RefusedRequest) -> Refused:
        """Return the rejection of an input that was sent alone."""
        return Refused.of(error)

    def close(self) -> None:
        """Drop waiting requests, and let sent requests finish."""
        self._threads.shutdown(cancel_futures=True)

    def halved(self, places: Sequence[int], texts: Sequence[str]) -> list[tuple[int, Outcome]]:
        """Return the outcomes of texts; rejected requests are halved, down to the rejected text."""
        try:
            results = self._request(texts)
        except RefusedRequest as error:
            if error.status not in TOO_LARGE:
                raise ServiceFailure(f"{self._connection.url}: {error.status}: {error}") from None
            if len(texts) == 1:
                return [(places[0], self.refused(error))]
            half = len(texts) // 2
            first = self.halved(places[:half], texts[:half])
            return first + self.halved(places[half:], texts[half:])
        for arrays in results:
            shapes = _shapes_of(self._encoding.kind, arrays)
            if shapes != self._shapes:
                raise ServiceFailure(
                    f"{self._connection.url} answers with another model than before: the shapes of "
                    f"a text's arrays were {self._shapes}, and are {shapes}; the written parts "
                    "stay; --restart starts over"
                )
        return list(zip(places, results, strict=True))

    def _request(self, texts: Sequence[str]) -> Sequence[TextArrays]:
        try:
            if self._encoding.kind == "sparse":
                return self._sparse(texts)
            if self._encoding.kind == "stats":
                return self._statistics(texts)
            if self._encoding.kind == "importance":
                return self._importance(texts)
            return self._vectors(texts)
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, UsageError):
                raise
            url = self._connection.url
            raise ServiceFailure(f"the reply of {url} is not from a Headscope service") from error

    def _tokenizing(self, texts: Sequence[str]) -> dict[str, object]:
        wanted = self._encoding
        body = {
            "inputs": self.inputs(texts),
            "truncate": wanted.cuts,
            "truncation_direction": wanted.truncation_direction,
            "prompt_name": wanted.prompt_name,
            "task": wanted.task,
        }
        return {name: value for name, value in body.items() if value is not None}

    def _importance(self, texts: Sequence[str]) -> Sequence[TextArrays]:
        """Request the vectors with each head ablated in turn."""
        whole = self._encoded(texts, "pooled")["pooled"]
        shifts = np.empty((len(texts), *self._shape), np.float32)
        for layer, head in np.ndindex(*self._shape):
            ablate = [{"layer": layer, "head": head}]
            without = self._encoded(texts, "pooled", ablate=ablate)["pooled"]
            shifts[:, layer, head] = [shift(*both) for both in zip(without, whole, strict=True)]
        return [(importance,) for importance in shifts]

    def _encoded(self, texts: Sequence[str], output: str, **fields: object) -> dict[str, Array]:
        wanted = self._encoding
        options: dict[str, object] = {
            "layer": wanted.layer,
            "pooling": wanted.pooling,
            "normalize": wanted.normalize,
            "dimensions": wanted.dimensions,
            "vector_ranges": wanted.vector_ranges,
        }
        if wanted.vector_type != "float32":
            options["vector_type"] = wanted.vector_type
        body = self._tokenizing(texts)
        if wanted.kind == "chunks":
            cut = wanted.chunk
            own = {"by": cut.by, "size": cut.size, "overlap": cut.overlap, "late": wanted.late}
            body["chunk"] = own
            if not wanted.cuts:
                body.pop("truncate")
            if wanted.overflow == "windows":
                body["overflow"] = "windows"
        else:
            body["outputs"] = [output]
        body |= {name: value for name, value in options.items() if value is not None}
        repeated = bool(fields)
        reply = self._connection.post("/encode", body | fields, SAFETENSORS, repeated=repeated)
        tensors: dict[str, Array] = load(reply)
        return tensors

    def _vectors(self, texts: Sequence[str]) -> Sequence[TextArrays]:
        tensors = self._encoded(texts, self._encoding.kind)
        if self._encoding.kind == "pooled":
            return [(vector,) for vector in tensors["pooled"]]
        if self._encoding.kind == "chunks":
            ends = tensors["span_cu_seqlens"][1:-1]
            places, vectors = (np.split(tensors[name], ends) for name in ("spans", "span_vectors"))
            return [(*own.T, rows) for own, rows in zip(places, vectors, strict=True)]
        if self._encoding.kind == "multivector":
            ends = tensors["multivector_cu_seqlens"][1:-1]
            return [(vectors,) for vectors in np.split(tensors["multivector"], ends)]
        ends = tensors["cu_seqlens"][1:-1]
        ids, states = (np.split(tensors[name], ends) for name in ("token_ids", "embeddings"))
        return list(zip(ids, states, strict=True))

    def _statistics(self, texts: Sequence[str]) -> Sequence[TextArrays]:
        body = self._tokenizing(texts) | {"include": ["stats"]}
        tensors = load(self._connection.post("/attention", body, SAFETENSORS))
        names = [field.name for field in FIELDS["stats"]]
        return [
            tuple(tensors[f"stats.{index}.{name}"] for name in names) for index in range(len(texts))
        ]

    def _sparse(self, texts: Sequence[str]) -> Sequence[TextArrays]:
        reply = self._connection.post("/embed_sparse", self._tokenizing(texts), "application/json")
        return [_sparse_arrays(values) for values in json.loads(reply)]


def _shapes_of(kind: Kind, arrays: TextArrays) -> list[list[int]]:
    """Return the shape of each array of a text, without the axis of its tokens."""
    fields = zip(FIELDS[kind], arrays, strict=True)
    several = kind == "chunks"
    return [[*array.shape[int(field.ragged or several) :]] for field, array in fields]


class SparseValue(TypedDict):
    """Weight of a word in a reply of `POST /embed_sparse`."""

    index: int
    value: float


def _sparse_arrays(values: Sequence[SparseValue]) -> tuple[Array, Array]:
    indices = np.array([value["index"] for value in values], np.int64)
    return indices, np.array([value["value"] for value in values], np.float32)


REQUEST_BYTES = 2**23
"""Maximum bytes of the files of a request, unless a single file has more."""
MOST_FILE_BYTES = 2**28
"""Maximum bytes of a file; the service has a limit of its own."""
PICTURES_WINDOW_CHARACTERS = 2**13
"""Maximum characters of the paths of a window: some 100 pictures."""
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
"""PNG file of one black pixel, in base64."""


class RemotePictures(RemoteEncoder):
    """Encoder by the model of pictures of a service; its texts are paths."""

    trial = PIXEL
    request_size = REQUEST_BYTES

    def __init__(
        self, connection: Connection, encoding: Encoding, say: Callable[[str], None]
    ) -> None:
        encoding.check_for_pictures()
        self._first_frame = encoding.first_frame
        super().__init__(connection, encoding, say)
        self.window_characters = PICTURES_WINDOW_CHARACTERS

    def encoder_info(self, info: dict[str, Any]) -> dict[str, Any]:
        """Return the properties of a vision tower where there is one, else of the encoder."""
        return info | (info.get("vision") or {})

    def sizes(self, texts: Sequence[str]) -> list[int]:
        """Return the bytes of each file; 1 for a file that does not exist."""
        paths = map(Path, texts)
        return [1 + (path.stat().st_size if path.is_file() else 0) for path in paths]

    def inputs(self, texts: Sequence[str]) -> list[object]:
        """Return pictures in base64 as elements of a request."""
        first_frame = {"first_frame": True} if self._first_frame else {}
        return [{"image": text, **first_frame} for text in texts]

    def refused(self, error: RefusedRequest) -> Refused:
        """Return the rejection of a picture that was sent alone."""
        return Refused.of_picture(error)

    def send(self, places: Sequence[int], texts: Sequence[str]) -> list[tuple[int, Outcome]]:
        """Read the files, and return the outcomes of the pictures."""
        refused: list[tuple[int, Outcome]] = []
        sent: list[tuple[int, str]] = []
        for place, path in zip(places, texts, strict=True):
            data = read_picture(path, MOST_FILE_BYTES)
            if isinstance(data, Refused):
                refused.append((place, data))
            else:
                sent.append((place, base64.b64encode(data).decode()))
        if not sent:
            return refused
        return refused + self.halved([place for place, _ in sent], [text for _, text in sent])
