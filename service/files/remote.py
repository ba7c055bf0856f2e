"""Encoder by a running service: the calls of the client library, which is in the extra `client`.

Notation: S tokens of one text, H hidden size, L layers, N heads.
"""

from __future__ import annotations

import base64
import contextlib
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

import headscope
from headscope import Client, HeadscopeError, NoConnection, Retries
from headscope.inputs import Picture
from service.files.options import (
    FIELDS,
    FileOptions,
    Outcome,
    Pending,
    Refused,
    TextArrays,
    UsageError,
    batches_by_length,
    in_flags,
    vectors_of,
)
from service.files.rows import read_picture
from service.inference.attention.statistics import shift
from service.inference.fingerprint import FINGERPRINT_HEADER
from service.inference.timings import NO_WARNINGS, Warnings

PATIENT = Retries(
    count=7,
    statuses=frozenset({408, 429, 500, 502, 503, 504}),
    first_wait_seconds=0.5,
    longest_wait_seconds=30.0,
    longest_retry_after_seconds=300.0,
    silence_seconds=120.0,
    incomplete=True,
)
"""Retries of a run that lasts for hours, whose service may restart, also behind a proxy."""
CALL_SECONDS = 24 * 3600.0
"""Timeout of a call; its retries end much earlier."""
CALLS_AT_ONCE = 4
CALL_CHARACTERS = 2**15
"""Maximum characters of a call's texts, some dozens of batches of a service on a CPU."""
WINDOW_CHARACTERS = 32 * CALL_CHARACTERS
TOKENS_WINDOW_CHARACTERS = 4 * CALL_CHARACTERS
CALL_BYTES = 2**23
"""Maximum bytes of the files of a call, unless a single file has more."""
MOST_FILE_BYTES = 2**28
"""Maximum bytes of a file; the service has a limit of its own."""
PICTURES_WINDOW_CHARACTERS = 2**13
"""Maximum characters of the paths of a window: some 100 pictures."""
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
"""PNG file of one black pixel."""


class ServiceFailure(OSError):
    """Failure of the service, or of the connection to it, after all retries."""


class _Counts(headscope.Warnings):
    """Counts of texts in all replies, without Python's warnings."""

    total = NO_WARNINGS

    def note(self, headers: Mapping[str, str]) -> None:
        """Add the counts of a reply."""
        with self._lock:
            self.total += Warnings.of_headers(headers)


class RemoteEncoder:
    """Encoder of texts, or of pictures at their paths, by the model of a service."""

    def __init__(
        self,
        options: FileOptions,
        say: Callable[[str], None],
        *,
        pictures: bool = False,
    ) -> None:
        """Query the properties of the options' service, and try the encoding on a text or picture.

        `say` is called once if the service does not answer, and if replies have no fingerprint.

        Raises:
            UsageError: the address or the key is invalid, or the service refuses the encoding.
            ServiceFailure: the service does not answer.

        """
        self._encoding, self._pictures, self._say = options.encoding, pictures, say
        if pictures:
            self._encoding.check_for_pictures()
        self._retries, self._said = replace(PATIENT, on_retry=self._before_retry), threading.Lock()
        try:
            self._client, self._uncounted = (
                Client(
                    options.url or "",
                    api_key=options.api_key,
                    timeout=CALL_SECONDS,
                    retries=self._retries,
                    max_in_flight=1,
                )
                for _ in range(2)
            )
        except ValueError as error:
            raise UsageError(str(error)) from None
        self._counts = self._client.warnings = _Counts()
        self._uncounted.warnings = _Counts()
        self._threads = ThreadPoolExecutor(CALLS_AT_ONCE, "calls")
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self.identity = self._tried()
            undo.pop_all()

    def _tried(self) -> dict[str, object]:
        """Try the encoding, and return the properties of the service that determine the output."""
        url = self._client.url
        try:
            info = self._uncounted.info()
            tower = info.fields.get("vision") if self._pictures else None
            properties = {**info.fields, **(tower or {})}
            # a static embedding has no heads, and the service rejects the first
            self._shape = int(properties.get("layers") or 1), int(properties.get("heads") or 1)
            trial = self._picture(PIXEL) if self._pictures else "a text"
            (tried,) = self._computed([trial], self._uncounted)
            if isinstance(tried, headscope.Refused):
                raise tried
        except headscope.Refused as error:
            raise UsageError(f"{url} refuses ({error.status}): {error.detail}") from None
        except HeadscopeError as error:
            raise self._failure(error) from None
        fingerprint = self._uncounted.fingerprint
        if fingerprint is None:
            self._say(
                f"{url} answers without {FINGERPRINT_HEADER} (an older service, or a proxy that "
                "removes it): whether one model computes all texts is not checked"
            )
        for client in (self._client, self._uncounted):
            client.infos[None], client.expect_fingerprint = info, fingerprint
        self._shapes = self._shapes_of(tried)
        return {
            "fingerprint": fingerprint,
            "shapes": self._shapes,
            "model": properties.get("artifact_sha256"),
            "engine": f"{properties.get('engine')}, {properties.get('provider')}",
            "max_tokens": properties.get("max_input_length"),
            "version": properties.get("version"),
            "url": True,
        }

    @property
    def window_characters(self) -> int:
        """Maximum characters of a window's texts, or of the paths of its pictures."""
        if self._pictures:
            return PICTURES_WINDOW_CHARACTERS
        if self._encoding.kind == "importance":  # each window takes a request for every head
            return max(CALL_CHARACTERS, WINDOW_CHARACTERS // math.prod(self._shape))
        tokens = self._encoding.kind in ("tokens", "multivector")
        return TOKENS_WINDOW_CHARACTERS if tokens else WINDOW_CHARACTERS

    @property
    def warnings(self) -> Warnings:
        """Warnings of the service about the texts computed so far."""
        return self._counts.total

    def begin(self, texts: Sequence[str]) -> Pending:
        """Send the texts in calls of similar length."""
        if self._pictures:
            files = map(Path, texts)
            sizes = [1 + (file.stat().st_size if file.is_file() else 0) for file in files]
        else:
            sizes = [1 + len(text) for text in texts]
        most = CALL_BYTES if self._pictures else CALL_CHARACTERS
        return [
            self._threads.submit(self._outcomes, batch, [texts[index] for index in batch])
            for batch in batches_by_length(sizes, most)
        ]

    def close(self) -> None:
        """Drop waiting calls, let sent calls finish, and close the connections."""
        self._threads.shutdown(cancel_futures=True)
        self._client.close()
        self._uncounted.close()

    def _outcomes(self, indices: Sequence[int], texts: Sequence[str]) -> list[tuple[int, Outcome]]:
        """Return the indices and outcomes of some texts, or of the pictures at some paths."""
        read = [self._read(text) for text in texts]
        inputs = [given for given in read if not isinstance(given, Refused)]
        try:
            computed = iter(self._computed(inputs, self._client))
        except HeadscopeError as error:
            raise self._failure(error) from None
        outcomes: list[tuple[int, Outcome]] = []
        for index, given in zip(indices, read, strict=True):
            arrays = given if isinstance(given, Refused) else next(computed)
            if isinstance(arrays, headscope.Refused):
                arrays = Refused(in_flags(arrays.detail))
            elif not isinstance(arrays, Refused) and self._shapes_of(arrays) != self._shapes:
                raise ServiceFailure(
                    f"{self._client.url} answers with another model than before: the shapes of a "
                    f"text's arrays were {self._shapes}, and are {self._shapes_of(arrays)}; the "
                    "written parts stay; --restart starts over"
                )
            outcomes.append((index, arrays))
        return outcomes

    def _read(self, text: str) -> str | Picture | Refused:
        """Return a text, or the picture at a path."""
        if not self._pictures:
            return text
        data = read_picture(text, MOST_FILE_BYTES)
        return data if isinstance(data, Refused) else self._picture(data)

    def _picture(self, data: bytes) -> Picture:
        return Picture(data, "the picture", self._encoding.first_frame)

    def _computed(
        self, inputs: Sequence[Any], client: Client
    ) -> list[TextArrays | headscope.Refused]:
        """Return the arrays of each input, in the order of the kind's fields, or its refusal."""
        wanted, kind = self._encoding, self._encoding.kind
        fields = _without_defaults(
            truncate=wanted.cuts or None,
            truncation_direction=wanted.truncation_direction,
            prompt_name=wanted.prompt_name,
            task=wanted.task,
        )
        if kind == "stats":
            names = [field.name for field in FIELDS[kind]]
            replies = client.attention(inputs, include=["stats"], on_error="return", **fields)
            return _each(replies, lambda own: tuple(own.statistics[name] for name in names))
        fields |= _without_defaults(
            layer=wanted.layer,
            pooling=wanted.pooling,
            normalize=wanted.normalize,
            dimensions=wanted.dimensions,
            vector_ranges=wanted.vector_ranges,
            vector_type=None if wanted.vector_type == "float32" else wanted.vector_type,
            overflow="windows" if wanted.overflow == "windows" else None,
            chunk={**asdict(wanted.chunk), "late": wanted.late} if kind == "chunks" else None,
        )
        if kind != "chunks":
            fields["outputs"] = ["pooled" if kind == "importance" else kind]
        encodings = client.encode(inputs, on_error="return", **fields)
        if kind == "importance":
            return self._importance(inputs, encodings, fields)
        return _each(encodings, self._arrays)

    def _arrays(self, encoding: headscope.Encoding) -> TextArrays:
        kind = self._encoding.kind
        if kind == "chunks":
            places = np.array(encoding.spans, np.int64).reshape(-1, 2)
            return (*places.T, encoding.span_vectors)
        vectors = tuple(encoding.tensors[field.tensor] for field in vectors_of(kind))
        return (np.array(encoding.token_ids), *vectors) if kind == "tokens" else vectors

    def _importance(
        self, inputs: Sequence[Any], encodings: Sequence[Any], fields: dict[str, Any]
    ) -> list[TextArrays | headscope.Refused]:
        """Request the vectors again with each head ablated in turn."""
        pairs = zip(inputs, encodings, strict=True)
        kept = [pair for pair in pairs if not isinstance(pair[1], headscope.Refused)]
        shifts = np.empty((len(kept), *self._shape), np.float32)
        for layer, head in np.ndindex(*self._shape):
            fields["ablate"] = [{"layer": layer, "head": head}]
            without = self._uncounted.encode([given for given, _ in kept], **fields)
            shifts[:, layer, head] = [
                shift(own.pooled, whole.pooled)
                for own, (_, whole) in zip(without, kept, strict=True)
            ]
        rows = iter(shifts)
        return _each(encodings, lambda _: (next(rows),))

    def _shapes_of(self, arrays: TextArrays) -> list[list[int]]:
        """Return the shape of each array of a text, without the axis of its tokens or chunks."""
        kind = self._encoding.kind
        fields = zip(FIELDS[kind], arrays, strict=True)
        return [[*own.shape[int(field.ragged or kind == "chunks") :]] for field, own in fields]

    def _before_retry(self, error: HeadscopeError) -> None:
        """Report the first attempt without a reply; a busy service is retried silently."""
        if isinstance(error, NoConnection) and self._said.acquire(blocking=False):
            count = self._retries.count
            seconds = sum(self._retries.wait(error, attempt, 0.5) for attempt in range(count))
            self._say(f"{error}; retrying {count} times, for about {seconds:.0f} s")

    def _failure(self, error: HeadscopeError) -> ServiceFailure:
        """Return the error that ends a run."""
        advice = f"({1 + self._retries.count} tries); the same command resumes the run later"
        if isinstance(error, headscope.Refused | headscope.InvalidReply):
            advice = "(the written parts stay; --restart starts over)"
        return ServiceFailure(f"{error} {advice}")


def _each(
    results: Sequence[Any], arrays_of: Callable[[Any], TextArrays]
) -> list[TextArrays | headscope.Refused]:
    return [own if isinstance(own, headscope.Refused) else arrays_of(own) for own in results]


def _without_defaults(**fields: Any) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}
