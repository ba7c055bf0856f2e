"""Plan of a request's outputs: what its fields beside the texts decide, checked once."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from model.artifact.manifest import Manifest
from model.artifact.vectors import TextVectors
from model.numerics.quantization import FLOAT32, WITH_RANGES, Quantization
from service.engines.contract import Floats, Output, TextTask
from service.errors import Unprocessable
from service.inference.encoding import EncodeOptions
from service.inference.outputs.declared import OUTPUTS, names_of
from service.inference.outputs.field import VECTOR, TextArrays
from service.inference.tokenization.text import Text
from service.inference.tokenization.tokenizer import Options
from service.scheduler.outputs import requested
from service.scheduler.queue import Reduce

INLINE_FEATURES = 2**16
"""Maximum number of features that are converted on the event loop, in about 0.3 ms."""


class Plan:
    """Task of each text of a request for the engine, and the way from its output to arrays.

    A plan has no state of a request: requests with the same options share it.
    """

    def __init__(self, options: EncodeOptions, manifest: Manifest, vectors: TextVectors) -> None:
        """Raise `Unprocessable` if the model lacks an output, or the options do not fit it."""
        self.quantization = quantization_of(options, vectors, manifest.config.num_hidden_layers)
        """Conversion of pooled vectors to the requested type."""
        for name in options.outputs:
            if not OUTPUTS[name].offered(manifest):
                known = ", ".join(names_of(manifest))
                raise Unprocessable(
                    f"outputs: {manifest.model} has no {name}: its outputs are {known}"
                )
        self.options, self._manifest, self._vectors = options, manifest, vectors
        self.mode = options.pooling or vectors.pooling
        """Pooling of vectors."""
        self.states = options.states(manifest.config.num_hidden_layers)
        self.outputs = [
            kind(options, manifest, vectors)
            for name, kind in OUTPUTS.items()
            if name in options.outputs
        ]
        self.fields = [field for output in self.outputs for field in output.fields]
        self.members = sorted(
            (field for field in self.fields if not field.bounds_of),
            key=lambda field: (not field.fact, "." not in field.name),
        )
        """Fields of a text in JSON: facts, members of objects, and vectors."""
        self.uses = {output.use for output in self.outputs if output.use}
        if options.ablated:
            self.uses.add("heads")
        self.unwindowed = [output.name for output in self.outputs if not output.windowed]
        """Names of outputs that are not computed in windows."""
        self.max_tokens = min(
            (own.max_tokens for own in self.outputs if own.max_tokens), default=None
        )
        """Maximum tokens of a text; the model's limit when None."""
        self._vector_fields = [field.name for field in self.fields if field.dtype == VECTOR]
        self._states = self.states if any(own.needs_states for own in self.outputs) else ()
        self._pooling = next((own.pooling for own in self.outputs if own.pooling), None)
        self._by_text = [output for output in self.outputs if output.by_text]
        self._finish = vectors.finisher(options.pooling, options.dimensions, options.normalize)
        self.projects = bool(manifest.sentence.modules and self._vector_fields)
        """Whether vectors are completed for all texts at once, as matrix products are faster so."""
        self.features = vectors.kept(options.pooling, options.dimensions)
        """D of pooled vectors."""
        self.plain = (
            not self.projects
            and self.quantization is FLOAT32
            and (self._pooling is not None and len(self.outputs) == 1)
        )
        """Whether a text has nothing but its vector in float32, pooled by the engine."""

    def nbytes(self, texts: Sequence[Text], number: float) -> int:
        """Return the predicted bytes of all vectors in a reply, by the bytes of a float."""
        if self.plain:
            return round(number * len(texts) * self.features)
        return round(sum(output.nbytes(texts, number) for output in self.outputs))

    def limited(self, options: Options) -> Options:
        """Return tokenisation options with the limit of the outputs, which may exclude windows."""
        if options.windows and self.unwindowed:
            raise Unprocessable(
                f"outputs: {self.unwindowed[0]} of long texts is not computed in windows: set "
                "`overflow` to truncate or error"
            )
        return replace(options, max_tokens=self.max_tokens) if self.max_tokens else options

    def task(self, text: Text) -> TextTask:
        """Return the forward pass of a text."""
        task = TextTask(
            text.input_ids,
            text.segment_ids,
            self._states,
            self._pooling,
            self.options.ablated,
            pixels=text.pixels,
        )
        for output in self._by_text:
            output.extend(task, text)
        return task

    def reductions(self, texts: Sequence[Text]) -> Sequence[Reduce[TextArrays]]:
        """Return the reduction of each text's output; the same one where texts do not differ."""
        if self.plain:
            return [self._vector] * len(texts)
        return [partial(self.arrays, text) for text in texts]

    def _vector(self, computed: Output) -> TextArrays:
        return {"pooled": self._finish(requested(computed.pooled))}

    def arrays(self, text: Text, computed: Output) -> TextArrays:
        """Return a text's arrays; its pooled vectors are raw if the plan `projects`."""
        arrays = self.raw(text, computed)
        if not self.projects:
            self.complete([arrays])
        return arrays

    def raw(self, text: Text, computed: Output) -> TextArrays:
        """Return a text's arrays with raw pooled vectors."""
        arrays: TextArrays = {}
        for output in self.outputs:
            arrays |= output.reduce(text, computed)
        return arrays

    def complete(self, texts: Sequence[TextArrays]) -> None:
        """Project, cut and normalise the raw pooled vectors of texts, `[…, H]` to `[…, D]`."""
        rows = [row for own in texts for name in self._vector_fields for row in _rows(own[name])]
        if self.projects:
            rows = self._vectors.project(rows, self.options.pooling)
        finished = map(self._finish, rows)
        for own in texts:
            for name in self._vector_fields:
                shape = own[name].shape[:-1]
                vectors = [*itertools.islice(finished, math.prod(shape))]
                size = len(vectors[0]) if vectors else self.features
                own[name] = np.array(vectors, np.float32).reshape(*shape, size)

    def convert(self, texts: Sequence[TextArrays]) -> Sequence[TextArrays]:
        """Convert the pooled vectors to the requested type, unless a feature exceeds it."""
        names, quantization = self._vector_fields, self.quantization
        if quantization is FLOAT32 or not names:
            return texts
        rows = [_rows(own[name]) for own in texts for name in names]
        try:
            converted = quantization(np.concatenate(rows))
        except OverflowError as error:
            largest = [max(np.abs(own[name]).max(initial=0) for name in names) for own in texts]
            raise Unprocessable(
                f"vector_type {quantization.vector_type}: inputs[{int(np.argmax(largest))}]: "
                f"{error}: ask for float32, or `normalize`"
            ) from None
        parts = iter(np.split(converted, np.cumsum([len(own) for own in rows])[:-1]))
        for own in texts:
            for name in names:
                part = next(parts)
                own[name] = part.reshape(*own[name].shape[:-1], part.shape[-1])
        return texts

    async def converted(self, texts: Sequence[TextArrays]) -> Sequence[TextArrays]:
        """Return the arrays after `convert`, in a thread if there are many."""
        size = sum(own[name].size for own in texts for name in self._vector_fields)
        if size <= INLINE_FEATURES:
            return self.convert(texts)
        return await asyncio.to_thread(self.convert, texts)

    def having(self, **changes: Any) -> Plan:
        """Return the plan of the same model with other options."""
        return Plan(replace(self.options, **changes), self._manifest, self._vectors)

    def of_chunks(self) -> Plan:
        """Return the plan of float32 vectors of chunks that are encoded alone, as texts."""
        return self.having(outputs=("pooled",), vector_type="float32", vector_ranges=None)


def _rows(array: Floats) -> Floats:
    return array.reshape(-1, array.shape[-1])


def quantization_of(options: EncodeOptions, vectors: TextVectors, last_layer: int) -> Quantization:
    """Return the conversion of the pooled vectors to the requested type, with its ranges."""
    vector_type, given = options.vector_type, options.vector_ranges
    if vector_type not in WITH_RANGES:
        if given is not None:
            raise Unprocessable(
                f"vector_ranges: vector_type {vector_type} has no ranges, int8 and uint8 have: "
                "leave it out"
            )
        return FLOAT32 if vector_type == "float32" else Quantization(vector_type)
    if given is not None:
        return Quantization(
            vector_type, _checked(given, vectors.kept(options.pooling, options.dimensions))
        )
    if not options.own_vectors(vectors.pooling, last_layer):
        raise Unprocessable(
            f"vector_type {vector_type}: the artifact records ranges of the last hidden state by "
            "the checkpoint's pooling alone: give `vector_ranges` for another layer or pooling"
        )
    ranges = vectors.ranges(options.dimensions, options.normalize)
    if ranges is None:
        raise Unprocessable(
            f"vector_type {vector_type}: the artifact of a static embedding records no ranges: "
            "give `vector_ranges`"
        )
    return Quantization(vector_type, ranges)


def _checked(given: Sequence[Sequence[float]], features: int) -> Floats:
    """Return given ranges as `[2, D]`."""
    if sizes := [len(side) for side in given if len(side) != features]:
        raise Unprocessable(
            f"vector_ranges: a list has {sizes[0]} numbers, where the vectors have {features} "
            "features"
        )
    with np.errstate(over="ignore"):
        ranges = np.array(given, np.float64).astype(np.float32)
    valid = np.isfinite(ranges).all(axis=0) & (ranges[0] <= ranges[1])
    if not valid.all():
        feature = int(valid.argmin())
        low, high = given[0][feature], given[1][feature]
        raise Unprocessable(
            f"vector_ranges: feature {feature} has {low} … {high}: the lowest value, then the "
            "highest, both in the range of float32, are needed"
        )
    return ranges
