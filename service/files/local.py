"""Encoder by an engine of this process, which batches the texts or pictures of a window by length.

A window always has the same batches, so that its numbers are reproducible.

Notation: S tokens of one text, H hidden size, L layers, N heads, n chunks of a text, D features of
a vector.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from model.artifact.manifest import TOKENIZER, Artifact, Manifest
from model.artifact.vectors import TextVectors
from model.numerics.late_interaction import ROLES
from model.runtimes.capabilities import lacking
from model.runtimes.contract import Heads
from service.engines.contract import Engine, MapsTask, Output, Task, TextTask
from service.errors import NoTaskHead, NotExported, Unprocessable
from service.files.options import (
    PICTURE,
    Encoding,
    Outcome,
    Pending,
    Refused,
    TextArrays,
    UsageError,
    batches_by_length,
    in_flags,
)
from service.files.rows import read_picture
from service.health.golden import GoldenCheck
from service.inference.attention.statistics import STATISTICS, shift, statistics
from service.inference.attention.stream import CHUNK_TOKENS, LAYER_BYTES
from service.inference.encoding import EncodeOptions
from service.inference.fingerprint import fingerprint_of
from service.inference.long_texts import Window, window_tasks, windows_of
from service.inference.outputs import field
from service.inference.outputs.chunks import chunks_of
from service.inference.outputs.declared import OUTPUTS
from service.inference.outputs.spans import check_pooling, span_arrays
from service.inference.plan import Plan
from service.inference.timings import NO_WARNINGS, Warnings
from service.inference.tokenization.inputs import Picture
from service.inference.tokenization.text import Text
from service.inference.tokenization.tokenizer import Limits, Options, TextTokenizer
from service.models.start import engine_factories, input_limits, torch_hosts
from service.scheduler.outputs import check_outputs, requested
from service.settings import Settings
from service.system.distribution import require, version
from service.system.resources import lower_priority, tokenize_in_the_calling_thread

SLICE_TEXTS = 64
"""Number of texts tokenised together; if one is rejected, they are tokenised one by one."""
MOST_THREADS = 4
"""Maximum number of pictures that are decoded at once."""
WINDOW_BATCHES = 32
"""Number of batches in a window, at four characters a token: enough to make a short last batch and
differences of length within batches negligible, few enough that an interruption costs little."""
CHARACTERS_PER_TOKEN = 4
TOKENS_WINDOW_BYTES = 48 * 2**20
"""Approximate limit of a window's token vectors, which are in memory together."""
PICTURES_WINDOW_CHARACTERS = 2**12
"""Maximum characters of the paths of a window: some 50 pictures."""
STATE_BYTES = 2**29
"""Maximum bytes of the token vectors of a text, which are in memory together."""


class Prepared(NamedTuple):
    """Text as it is computed."""

    text: Text
    windows: Sequence[Window] = ()
    """Windows of the whole text, whose chunks are pooled over them."""
    parts: Sequence[Text] = ()
    """Chunks as texts of their own, if they are encoded alone."""


class TextReader:
    """Tokenizer of texts, which cuts them into chunks if these are requested."""

    def __init__(
        self, artifact: Artifact, limits: Limits, encoding: Encoding, max_tokens: int | None
    ) -> None:
        """Check the options of tokenisation."""
        manifest, path = artifact.manifest, artifact.path(TOKENIZER)
        self._tokenizer = tokenizer = TextTokenizer(path, manifest.sentence, limits)
        self._config, self._encoding = manifest.config, encoding
        self.separator_ids = tokenizer.separator_ids
        self._options = Options(
            encoding.cuts,
            encoding.truncation_direction,
            encoding.prompt_name,
            encoding.task,
            max_tokens,
            naming="the text",
            windows=encoding.overflow == "windows" or not encoding.late,
        )
        try:
            tokenizer.tokenize([], self._options)
        except Unprocessable as error:
            raise UsageError(in_flags(error)) from None
        self.lacks_prompt = tokenizer.expects_prompt and self._options.unprompted

    def read(self, texts: Sequence[str]) -> list[Prepared | Refused]:
        """Return each text as it is computed, or its rejection."""
        return [
            prepared
            for first in range(0, len(texts), SLICE_TEXTS)
            for prepared in self._slice(texts[first : first + SLICE_TEXTS])
        ]

    def _slice(self, texts: Sequence[str]) -> list[Prepared | Refused]:
        try:
            return [*map(self._prepared, texts, self._tokenizer.tokenize(texts, self._options))]
        except Unprocessable as error:
            if len(texts) == 1:
                return [Refused(in_flags(error))]
            return [prepared for text in texts for prepared in self._slice([text])]

    def _prepared(self, given: str, text: Text) -> Prepared | Refused:
        """Check a text's size, cut it into chunks, and tokenise chunks that are encoded alone."""
        kind, late, tokens = self._encoding.kind, self._encoding.late, text.size
        maps = 4 * self._config.num_attention_heads * tokens**2
        if kind == "stats" and maps > LAYER_BYTES:
            return Refused(
                f"the text has {tokens} tokens: maps that are computed together take {maps} bytes, "
                f"the limit is {LAYER_BYTES}"
            )
        if kind != "chunks":
            return Prepared(text)
        size = 4 * tokens * self._config.hidden_size
        if late and size > STATE_BYTES:
            return Refused(
                f"the text has {tokens} tokens, whose vectors take {size} bytes; the limit is "
                f"{STATE_BYTES}: split it, or pass --no-late"
            )
        (text.spans,) = chunks_of([given], [text], self._encoding.chunk)
        if late:
            return Prepared(text, windows_of(text, self._tokenizer.limits.max_tokens, "the text"))
        alone = [given[start:end] for start, end in text.spans.places.tolist()]
        parts = self._tokenizer.tokenize(alone, replace(self._options, windows=False))
        return Prepared(text, parts=parts)


class PictureFileReader:
    """Reader of pictures at paths, in several threads."""

    separator_ids = frozenset[int]()
    lacks_prompt = False

    def __init__(self, manifest: Manifest, settings: Settings, encoding: Encoding) -> None:
        """Check the options of the encoding."""
        encoding.check_for_pictures()
        require("encoding pictures", "PIL")
        from service.inference.pictures import PictureReader

        self._reader = PictureReader(manifest, settings.max_image_pixels)
        self._max_bytes, self._first_frame = settings.max_image_bytes, encoding.first_frame

    def read(self, paths: Sequence[str]) -> list[Prepared | Refused]:
        """Return the tokens of each picture, or its rejection."""
        with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1), "pictures") as threads:
            return [*threads.map(self._one, paths)]

    def _one(self, path: str) -> Prepared | Refused:
        data = read_picture(path, self._max_bytes)
        if isinstance(data, Refused):
            return data
        try:
            return Prepared(self._reader.read(Picture(data, self._first_frame), PICTURE))
        except Unprocessable as error:
            return Refused(in_flags(error))


class LocalEncoder:
    """Encoder by an artifact's engine and tokenizer, with the limits of the settings."""

    def __init__(
        self, artifact: Artifact, settings: Settings, encoding: Encoding, engine: Engine | None
    ) -> None:
        """Use an engine and leave it open; without one, start the settings' engine.

        Raises:
            NoTaskHead, NotExported: the model lacks the output.
            UsageError: the options do not fit the model.

        """
        tokenize_in_the_calling_thread()
        manifest, limits = artifact.manifest, input_limits(settings, artifact)
        self._manifest, self._encoding = manifest, encoding
        if manifest.images:
            self._reader: TextReader | PictureFileReader
            self._reader = PictureFileReader(manifest, settings, encoding)
        self._plan = plan_of(artifact, encoding)
        if not manifest.images:
            self._reader = TextReader(artifact, limits, encoding, self._plan.max_tokens)
        self._engine, self._started = engine or start_engine(settings, artifact), engine is None
        self._batch_tokens = settings.max_batch_tokens or self._engine.batch_tokens
        if encoding.kind == "stats":
            self._batch_tokens = min(self._batch_tokens, CHUNK_TOKENS)
        self._engine.warm_up(self._batch_tokens, limits.max_tokens)
        self._threads = ThreadPoolExecutor(self._engine.concurrency, "files", lower_priority)
        self.warnings = NO_WARNINGS
        self.identity: dict[str, object] = {
            "fingerprint": fingerprint_of(artifact, self._engine.provider),
            "model": artifact.sha256,
            "engine": f"{self._engine.name}, {self._engine.provider}",
            "batch_tokens": self._batch_tokens,
            "max_tokens": limits.max_tokens,
            "version": version(),
        }

    @property
    def window_characters(self) -> int:
        """Maximum characters of a window's texts, or of the paths of its pictures."""
        config, characters = self._manifest.config, CHARACTERS_PER_TOKEN * self._batch_tokens
        if self._manifest.images:
            return PICTURES_WINDOW_CHARACTERS
        if self._encoding.kind in ("tokens", "multivector"):
            return min(WINDOW_BATCHES * characters, TOKENS_WINDOW_BYTES // config.hidden_size)
        if self._encoding.kind == "importance":  # each window takes a forward pass for every head
            heads = config.num_hidden_layers * config.num_attention_heads
            return max(characters, WINDOW_BATCHES * characters // heads)
        return WINDOW_BATCHES * characters

    def begin(self, texts: Sequence[str]) -> Pending:
        """Read texts in the calling thread, or pictures in others, while a window is computed."""
        read = self._reader.read(texts)
        kept = [(i, own) for i, own in enumerate(read) if not isinstance(own, Refused)]
        lacking = len(kept) if self._reader.lacks_prompt else 0
        self.warnings += Warnings.of([own.text for _, own in kept], lacking)
        refused: Future[list[tuple[int, Outcome]]] = Future()
        refused.set_result([(i, own) for i, own in enumerate(read) if isinstance(own, Refused)])
        batches = batches_by_length([own.text.size for _, own in kept], self._batch_tokens)
        return [
            *(self._threads.submit(self._outcomes, [kept[i] for i in batch]) for batch in batches),
            refused,
        ]

    def close(self) -> None:
        """Drop waiting batches, and close the engine if it was started here."""
        self._threads.shutdown(cancel_futures=True)
        if self._started:
            self._engine.close()

    def _outcomes(self, batch: Sequence[tuple[int, Prepared]]) -> list[tuple[int, Outcome]]:
        """Compute a batch; raise a UsageError if a feature exceeds the requested type."""
        try:
            arrays = self._arrays([prepared for _, prepared in batch])
        except Unprocessable as error:
            raise UsageError(in_flags(error)) from None
        return [(index, own) for (index, _), own in zip(batch, arrays, strict=True)]

    def _arrays(self, batch: Sequence[Prepared]) -> Sequence[TextArrays]:
        """Compute the arrays of each text, in the order of the kind's fields."""
        texts = [prepared.text for prepared in batch]
        match self._encoding.kind:
            case "stats":
                return self._statistics(texts)
            case "importance":
                return self._importance(texts)
            case "chunks":
                return self._chunks(batch)
            case kind:
                vectors = [tuple(own.values()) for own in self._vectors(self._plan, texts)]
                pairs = zip(texts, vectors, strict=True)
                return [(t.input_ids, *own) for t, own in pairs] if kind == "tokens" else vectors

    def _run(self, tasks: Sequence[Task]) -> list[Output]:
        outputs = self._engine.run(tasks)
        check_outputs(tasks, outputs, self._engine.hidden_size)
        return outputs

    def _vectors(self, plan: Plan, texts: Sequence[Text]) -> Sequence[field.TextArrays]:
        """Compute the arrays of a plan of /encode."""
        outputs = self._run([plan.task(text) for text in texts])
        pairs = zip(plan.reductions(texts), outputs, strict=True)
        arrays = [reduce(output) for reduce, output in pairs]
        if plan.projects:
            plan.complete(arrays)
        return plan.convert(arrays)

    def _importance(self, texts: Sequence[Text]) -> list[TextArrays]:
        """Compute `[L, N]` for each text, ablating one head at a time in the whole batch."""
        config = self._manifest.config
        whole = self._vectors(self._plan, texts)
        shape = len(texts), config.num_hidden_layers, config.num_attention_heads
        shifts = np.empty(shape, np.float32)
        for layer, head in np.ndindex(*shape[1:]):
            without = self._vectors(self._plan.having(ablated=((layer, head),)), texts)
            pairs = zip(without, whole, strict=True)
            shifts[:, layer, head] = [shift(own["pooled"], other["pooled"]) for own, other in pairs]
        return [(importance,) for importance in shifts]

    def _statistics(self, texts: Sequence[Text]) -> list[TextArrays]:
        """Compute `[L, N]` for each of `STATISTICS`, with the maps of one layer at a time."""
        config = self._manifest.config
        layers, heads = (
            tuple(range(size)) for size in (config.num_hidden_layers, config.num_attention_heads)
        )
        states = self._run(
            [
                TextTask(text.input_ids, text.segment_ids, pixels=text.pixels, map_layers=layers)
                for text in texts
            ]
        )
        arrays: list[TextArrays] = []
        for text, output in zip(texts, states, strict=True):
            ends = np.isin(text.input_ids, [*self._reader.separator_ids]).nonzero()[0].tolist()
            tasks = [
                MapsTask(state, state, layer, heads, segment=text.segment)
                for layer, state in enumerate(output.map_states)
            ]
            found = [statistics(requested(self._run([task])[0].maps), ends) for task in tasks]
            arrays.append(tuple(np.stack([layer[name] for layer in found]) for name in STATISTICS))
        return arrays

    def _chunks(self, texts: Sequence[Prepared]) -> list[TextArrays]:
        """Compute `[n]` starts and ends in code points, and `[n, D]` vectors for each text."""
        arrays = self._late(texts) if self._encoding.late else self._alone(texts)
        return [
            (*own["spans"].T.astype(np.int64), own["span_vectors"])
            for own in self._plan.convert(arrays)
        ]

    def _late(self, texts: Sequence[Prepared]) -> list[field.TextArrays]:
        """Pool the token vectors of whole texts, which are computed in windows if they are long."""
        states, tasks, keep = window_tasks(
            [own.text for own in texts],
            [own.windows for own in texts],
            self._plan,
            self._manifest.config.hidden_size,
        )
        for batch in batches_by_length([task.tokens for task in tasks], self._batch_tokens):
            outputs = self._run([tasks[index] for index in batch])
            for index, output in zip(batch, outputs, strict=True):
                keep[index](output)
        pairs = zip(texts, states, strict=True)
        arrays = [self._plan.raw(own.text, Output([*state])) for own, state in pairs]
        self._plan.complete(arrays)
        return arrays

    def _alone(self, texts: Sequence[Prepared]) -> list[field.TextArrays]:
        """Encode each chunk as a text of its own."""
        parts = [part for own in texts for part in own.parts]
        plan = self._plan.of_chunks()
        vectors = np.empty((len(parts), plan.features), np.float32)
        for batch in batches_by_length([part.size for part in parts], self._batch_tokens):
            computed = self._vectors(plan, [parts[index] for index in batch])
            vectors[batch] = [own["pooled"] for own in computed]
        return span_arrays([own.text for own in texts], vectors)


def plan_of(artifact: Artifact, encoding: Encoding) -> Plan:
    """Return the plan of an encoding's vectors; for importance and statistics the pooled ones.

    Raise if the model cannot compute the requested output.
    """
    manifest, vectors = artifact.manifest, TextVectors.of(artifact)
    states = manifest.config.num_hidden_layers + 1
    if not -states <= encoding.layer < states:
        raise UsageError(f"--layer {encoding.layer} is not in {-states} … {states - 1}")
    size = vectors.size(encoding.pooling)
    if encoding.dimensions is not None and not 1 <= encoding.dimensions <= size:
        raise UsageError(f"--dimensions {encoding.dimensions} is not in 1 … {size}")
    if encoding.kind == "chunks" and encoding.late:
        try:
            check_pooling(encoding.pooling or manifest.sentence.pooling)
        except Unprocessable as error:
            raise UsageError(f"{error}; or pass --no-late") from None
    if encoding.kind in ("stats", "importance") and (message := lacking(manifest, Heads)):
        raise NotExported(message)
    names = {"chunks": "spans", "importance": "pooled", "stats": "pooled"}
    output = OUTPUTS[names.get(encoding.kind, encoding.kind)]
    if not output.offered(manifest):
        raise NoTaskHead(f"{manifest.model} gives no {output.remedy}")
    options = EncodeOptions(
        (output.name,),
        encoding.layer,
        encoding.pooling,
        encoding.dimensions,
        encoding.normalize,
        vector_type=encoding.vector_type,
        vector_ranges=encoding.vector_ranges,
        role=encoding.prompt_name if encoding.prompt_name in ROLES else None,
    )
    try:
        return Plan(options, manifest, vectors)
    except Unprocessable as error:
        raise UsageError(in_flags(error)) from None


def start_engine(settings: Settings, artifact: Artifact) -> Engine:
    """Start the settings' engine, and check it on the artifact's golden texts."""
    return engine_factories(settings, artifact, GoldenCheck(artifact), torch_hosts(settings))[
        settings.engine
    ]()
