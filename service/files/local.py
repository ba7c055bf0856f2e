"""Encoder by an engine of this process, which batches the texts or pictures of a window by length.

A window always has the same batches, so that its numbers are reproducible.

Notation: S tokens of one text, H hidden size, L layers, N heads.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from model.artifact.manifest import TOKENIZER, Artifact
from service.errors import InputTooLong, Unprocessable
from service.files.options import PICTURE, Encoding, Refused, UsageError
from service.files.pictures import read_picture
from service.files.text_arrays import ChunksPlan, FilePlan, VectorsPlan, plan_of
from service.inference.tokenization.inputs import Picture
from service.inference.tokenization.text import Text
from service.inference.tokenization.tokenizer import Options, TextTokenizer
from service.models.start import input_limits
from service.settings import Settings
from service.system.distribution import require

if TYPE_CHECKING:
    from service.inference.pictures import PictureReader
from concurrent.futures import Future

from model.artifact.manifest import Manifest
from model.artifact.vectors import TextVectors
from model.runtimes.capabilities import (
    HeadMaps,
    HeadOutputs,
    lacking,
)
from service.engines.contract import Engine, Output, Task
from service.errors import NotExported
from service.files.options import Kind, Outcome, Pending, batches_by_length
from service.health.golden import GoldenCheck
from service.inference.fingerprint import fingerprint_of
from service.inference.outputs.spans import check_pooling
from service.inference.timings import NO_WARNINGS, Warnings
from service.models.start import engine_factories, torch_hosts
from service.scheduler.outputs import check_outputs
from service.system.distribution import version
from service.system.resources import lower_priority, tokenize_in_the_calling_thread

SLICE_TEXTS = 64
"""Number of texts tokenised together; if one is rejected, they are tokenised one by one."""
MOST_THREADS = 4
"""Maximum number of pictures that are decoded at once."""


class Reader(ABC):
    """Reader of the texts or pictures of a window."""

    separator_ids: frozenset[int] = frozenset()
    """Ids of tokens that end a text."""

    @abstractmethod
    def read(self, given: Sequence[str]) -> list[Text | Refused]:
        """Return the tokens of each text, or of the picture at each path."""

    def lacking(self, count: int) -> int:
        """Return the number of texts, among `count`, that lack a prompt of the model."""
        del count
        return 0

    def close(self) -> None:  # noqa: B027 - a tokenizer has no threads
        """Release resources."""


class TextReader(Reader):
    """Reader of texts."""

    def __init__(self, tokenizer: TextTokenizer, encoding: Encoding) -> None:
        """Initialise."""
        self._tokenizer, self._options = tokenizer, _options(tokenizer, encoding)
        self.separator_ids = frozenset(tokenizer.separator_ids)

    def planned(self, plan: FilePlan, encoding: Encoding, batch_tokens: int) -> FilePlan:
        """Apply the plan's limit of tokens, and return the plan, of chunks if requested."""
        self._options = replace(self._options, max_tokens=plan.max_tokens)
        if encoding.kind != "chunks" or not isinstance(plan, VectorsPlan):
            return plan
        return ChunksPlan(
            plan.manifest,
            batch_tokens,
            plan=plan.plan,
            encoding=encoding,
            tokenizer=self._tokenizer,
            options=replace(self._options, windows=False),
        )

    def read(self, given: Sequence[str]) -> list[Text | Refused]:
        """Return the tokens of each text, or its rejection."""
        read = []
        for first in range(0, len(given), SLICE_TEXTS):
            read += self._slice(given[first : first + SLICE_TEXTS])
        return read

    def lacking(self, count: int) -> int:
        """Return the number of texts if the model names a prompt, and none is given; else 0."""
        return count if self._tokenizer.lacks_prompt(self._options) else 0

    def _slice(self, texts: Sequence[str]) -> list[Text | Refused]:
        try:
            return [*self._tokenizer.tokenize(texts, self._options)]
        except (InputTooLong, Unprocessable) as error:
            if len(texts) == 1:
                return [Refused.of(error)]
            return [outcome for text in texts for outcome in self._slice([text])]


class PictureFileReader(Reader):
    """Reader of pictures, in several threads."""

    def __init__(self, reader: PictureReader, max_bytes: int, *, first_frame: bool) -> None:
        self._reader, self._max_bytes, self._first_frame = reader, max_bytes, first_frame
        self._threads = ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1), "pictures")

    def read(self, given: Sequence[str]) -> list[Text | Refused]:
        """Return the tokens of each picture, or its rejection."""
        return [*self._threads.map(self._one, given)]

    def close(self) -> None:
        """Drop waiting pictures, and end the threads."""
        self._threads.shutdown(cancel_futures=True)

    def _one(self, path: str) -> Text | Refused:
        data = read_picture(path, self._max_bytes)
        if isinstance(data, Refused):
            return data
        try:
            return self._reader.read(Picture(data, self._first_frame), PICTURE)
        except Unprocessable as error:
            return Refused.of(error)


def reader_of(artifact: Artifact, settings: Settings, encoding: Encoding) -> Reader:
    """Return the reader of a model's texts or pictures."""
    manifest = artifact.manifest
    if manifest.images is None:
        limits = input_limits(settings, artifact)
        tokenizer = TextTokenizer(artifact.path(TOKENIZER), manifest.sentence, limits)
        return TextReader(tokenizer, encoding)
    encoding.check_for_pictures()
    require("encoding pictures", "PIL")
    from service.inference.pictures import PictureReader

    reader = PictureReader(manifest, settings.max_image_pixels)
    return PictureFileReader(reader, settings.max_image_bytes, first_frame=encoding.first_frame)


def _options(tokenizer: TextTokenizer, encoding: Encoding) -> Options:
    """Return the tokenisation options of the texts."""
    options = Options(
        encoding.cuts,
        encoding.truncation_direction,
        encoding.prompt_name,
        encoding.task,
        naming="the text",
        windows=encoding.overflow == "windows" or not encoding.late,
    )
    try:
        tokenizer.tokenize([], options)
    except Unprocessable as error:
        text = str(error).replace("`task`", "--task").replace("task:", "--task:")
        text = text.replace("`prompt_name`", "--prompt-name").replace(
            "prompt_name", "--prompt-name"
        )
        raise UsageError(text) from None
    return options


WINDOW_BATCHES = 32
"""Number of batches in a window, at four characters a token: enough to make a short last batch and
differences of length within batches negligible, few enough that an interruption costs little."""
CHARACTERS_PER_TOKEN = 4
TOKENS_WINDOW_BYTES = 48 * 2**20
"""Approximate limit of a window's token vectors, which are in memory together."""
PICTURES_WINDOW_CHARACTERS = 2**12
"""Maximum characters of the paths of a window: some 50 pictures."""


class LocalEncoder:
    """Encoder by an artifact's engine and tokenizer, with the limits of the settings."""

    def __init__(
        self, artifact: Artifact, settings: Settings, encoding: Encoding, engine: Engine | None
    ) -> None:
        """Use an engine and leave it open; without one, start the settings' engine."""
        tokenize_in_the_calling_thread()
        manifest, limits = artifact.manifest, input_limits(settings, artifact)
        self._reader = reader_of(artifact, settings, encoding)
        check_encoding(artifact, encoding)
        self._engine = engine or start_engine(settings, artifact)
        self._started = engine is None
        vectors = TextVectors.of(artifact)
        self._plan = plan_of(manifest, vectors, encoding, self._reader.separator_ids)
        batch_tokens = settings.max_batch_tokens or self._engine.batch_tokens
        if isinstance(self._reader, TextReader):
            self._plan = self._reader.planned(self._plan, encoding, batch_tokens)
        self._batch_tokens = min(batch_tokens, self._plan.batch_tokens)
        self._engine.warm_up(self._batch_tokens, limits.max_tokens)
        self._threads = ThreadPoolExecutor(self._engine.concurrency, "files", lower_priority)
        self.window_characters = window_characters(manifest, encoding.kind, self._batch_tokens)
        self.warnings = NO_WARNINGS
        self.identity: dict[str, object] = {
            "fingerprint": fingerprint_of(artifact, self._engine.provider),
            "model": artifact.sha256,
            "engine": f"{self._engine.name}, {self._engine.provider}",
            "batch_tokens": self._batch_tokens,
            "max_tokens": limits.max_tokens,
            "version": version(),
        }

    def begin(self, texts: Sequence[str]) -> Pending:
        """Read texts in the calling thread, or pictures in others, while a window is computed."""
        places, tokenized = [], []
        refused: list[tuple[int, Outcome]] = []
        for place, (given, read) in enumerate(zip(texts, self._reader.read(texts), strict=True)):
            outcome = read if isinstance(read, Refused) else self._plan.prepare(given, read)
            if isinstance(outcome, Refused):
                refused.append((place, outcome))
            else:
                places.append(place)
                tokenized.append(outcome)
        self.warnings += Warnings.of(tokenized, self._reader.lacking(len(tokenized)))
        lengths = [len(text.input_ids) for text in tokenized]
        pending: Pending = []
        if tokenized:
            for indices in batches_by_length(lengths, self._batch_tokens):
                batch = [tokenized[i] for i in indices]
                where = [places[i] for i in indices]
                pending.append(self._threads.submit(self._run, where, batch))
        if refused:
            at_once: Future[list[tuple[int, Outcome]]] = Future()
            at_once.set_result(refused)
            pending.append(at_once)
        return pending

    def close(self) -> None:
        """Drop waiting batches, and close the engine if it was started here."""
        self._reader.close()
        self._threads.shutdown(cancel_futures=True)
        if self._started:
            self._engine.close()

    def _run(self, places: list[int], texts: list[Text]) -> list[tuple[int, Outcome]]:
        return list(zip(places, self._plan.compute(texts, self._checked), strict=True))

    def _checked(self, tasks: Sequence[Task]) -> list[Output]:
        outputs = self._engine.run(tasks)
        check_outputs(tasks, outputs, self._engine.hidden_size)
        return outputs


def window_characters(manifest: Manifest, kind: Kind, batch_tokens: int) -> int:
    """Return the maximum characters of a window's texts, or of the paths of its pictures."""
    if manifest.images:
        return PICTURES_WINDOW_CHARACTERS
    characters = CHARACTERS_PER_TOKEN * WINDOW_BATCHES * batch_tokens
    if kind in ("tokens", "multivector"):
        return min(characters, TOKENS_WINDOW_BYTES // manifest.config.hidden_size)
    if kind == "importance":  # each window takes a forward pass for every head
        heads = manifest.config.num_hidden_layers * manifest.config.num_attention_heads
        return max(CHARACTERS_PER_TOKEN * batch_tokens, characters // heads)
    return characters


def start_engine(settings: Settings, artifact: Artifact) -> Engine:
    """Start the settings' engine, and check it on the artifact's golden texts."""
    return engine_factories(settings, artifact, GoldenCheck(artifact), torch_hosts(settings))[
        settings.engine
    ]()


def check_encoding(artifact: Artifact, encoding: Encoding) -> None:
    """Check that the model can compute the requested output."""
    manifest = artifact.manifest
    states = manifest.config.num_hidden_layers + 1
    if not -states <= encoding.layer < states:
        raise UsageError(f"--layer {encoding.layer} is not in {-states} … {states - 1}")
    size = TextVectors.of(artifact).size(encoding.pooling)
    if encoding.dimensions is not None and not 1 <= encoding.dimensions <= size:
        raise UsageError(f"--dimensions {encoding.dimensions} is not in 1 … {size}")
    if encoding.kind == "chunks" and encoding.late:
        try:
            check_pooling(encoding.pooling or manifest.sentence.pooling)
        except Unprocessable as error:
            raise UsageError(f"{error}; or pass --no-late") from None
    needed = {"stats": HeadMaps, "importance": HeadOutputs}.get(encoding.kind)
    if needed and (message := lacking(manifest, needed)):
        raise NotExported(message)
