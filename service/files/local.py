"""Encoder by an engine of this process, which batches the texts or pictures of a window by length.

A window always has the same batches, so that its numbers are reproducible.

Notation: S tokens of one text, H hidden size, L layers, N heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from model.artifact.manifest import Artifact, Manifest
from model.artifact.vectors import TextVectors
from model.runtimes.capabilities import (
    HeadMaps,
    HeadOutputs,
    lacking,
)
from service.engines.contract import Engine, Output, Task
from service.errors import NotExported, Unprocessable
from service.files.encoder import Outcome, Pending, Refused, batches_by_length
from service.files.options import Encoding, Kind, UsageError
from service.files.readers import TextReader, reader_of
from service.files.text_arrays import Plan, plan_of
from service.health.golden import GoldenCheck
from service.inference.fingerprint import fingerprint_of
from service.inference.text_spans import check_pooling
from service.inference.text_warnings import NO_WARNINGS, Warnings
from service.inference.tokenization.tokenized import TokenizedText
from service.models.engine_start import engine_factories, torch_hosts
from service.models.limits import token_limits
from service.scheduler.outputs import check_outputs
from service.settings import Settings
from service.system.distribution import version
from service.system.resources import lower_priority, tokenize_in_the_calling_thread

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
        """Start the engine.

        Args:
            artifact: artifact of the model.
            settings: settings of device, threads and limits.
            encoding: requested output of each text.
            engine: engine to use and leave open; None starts the settings' engine.

        """
        tokenize_in_the_calling_thread()
        manifest, limits = artifact.manifest, token_limits(settings, artifact)
        self._reader = reader_of(artifact, settings, encoding)
        check_encoding(artifact, encoding)
        self._engine = engine or start_engine(settings, artifact)
        self._started = engine is None
        vectors = TextVectors.of(artifact)
        self._plan: Plan = plan_of(manifest, vectors, encoding, self._reader.separator_ids)
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

    def _run(self, places: list[int], texts: list[TokenizedText]) -> list[tuple[int, Outcome]]:
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
    """Check that the model can compute the requested output.

    Raises:
        UsageError: the layer or the dimensions do not exist.
        NotExported: the artifact lacks the output.

    """
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
