"""Encoder by an engine of this process, which batches the texts of a window by length.

A window always has the same batches, so that its numbers are reproducible.

Notation: S tokens of one text, H hidden size, L layers, N heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from model.artifact.manifest import TOKENIZER, Artifact
from model.artifact.vectors import TextVectors
from model.runtimes.capabilities import (
    GraphMaps,
    HeadMaps,
    HeadOutputs,
    lacking,
    lacking_state,
)
from service.engines.contract import Engine, Output, Task
from service.errors import InputTooLong, NotExported, Unprocessable
from service.files.chunks import ChunksPlan
from service.files.encoder import Outcome, Pending, Refused
from service.files.options import Encoding, UsageError
from service.files.text_arrays import Plan, PooledPlan, plan_of
from service.health.golden import GoldenCheck
from service.inference.fingerprint import fingerprint_of
from service.inference.text_spans import check_pooling
from service.inference.text_warnings import NO_WARNINGS, Warnings
from service.inference.tokenization.tokenized import TokenizedText
from service.inference.tokenization.tokenizer import Options, TextTokenizer
from service.measuring.evaluation import batches_by_length
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
SLICE_TEXTS = 64
"""Number of texts tokenised together; if one is rejected, they are tokenised one by one."""


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

        Raises:
            UsageError: the layer, dimensions or prompt do not exist.
            NoTaskHead: sparse vectors are requested, and the model has none.
            NotExported: a foreign graph lacks the requested output.
            ModelError: the artifact cannot be loaded.

        """
        tokenize_in_the_calling_thread()
        manifest, limits = artifact.manifest, token_limits(settings, artifact)
        self._tokenizer = TextTokenizer(artifact.path(TOKENIZER), manifest.sentence, limits)
        self._options = tokenizing(self._tokenizer, encoding)
        check_encoding(artifact, encoding)
        self._engine = engine or start_engine(settings, artifact)
        self._started = engine is None
        vectors = TextVectors.of(artifact)
        self._plan: Plan = plan_of(manifest, vectors, encoding, self._tokenizer.separator_ids)
        self._options = replace(self._options, max_tokens=self._plan.max_tokens)
        batch_tokens = settings.max_batch_tokens or self._engine.batch_tokens
        if encoding.kind == "chunks" and isinstance(self._plan, PooledPlan):
            alone = replace(self._options, windows=False)
            self._plan = ChunksPlan.of(self._plan, self._tokenizer, alone, batch_tokens)
        self._batch_tokens = min(batch_tokens, self._plan.batch_tokens)
        self._engine.warm_up(self._batch_tokens, limits.max_tokens)
        self._threads = ThreadPoolExecutor(self._engine.concurrency, "files", lower_priority)
        self.window_characters = CHARACTERS_PER_TOKEN * WINDOW_BATCHES * self._batch_tokens
        if encoding.kind in ("tokens", "multivector"):
            most = TOKENS_WINDOW_BYTES // manifest.config.hidden_size
            self.window_characters = min(self.window_characters, most)
        self.warnings = NO_WARNINGS
        if encoding.kind == "importance":  # each window takes a forward pass for every head
            heads = manifest.config.num_hidden_layers * manifest.config.num_attention_heads
            least = CHARACTERS_PER_TOKEN * self._batch_tokens
            self.window_characters = max(least, self.window_characters // heads)
        self.identity: dict[str, object] = {
            "fingerprint": fingerprint_of(artifact, self._engine.provider),
            "model": artifact.sha256,
            "engine": f"{self._engine.name}, {self._engine.provider}",
            "batch_tokens": self._batch_tokens,
            "max_tokens": limits.max_tokens,
            "version": version(),
        }

    def begin(self, texts: Sequence[str]) -> Pending:
        """Tokenise in the calling thread, while earlier batches are computed."""
        places, tokenized = [], []
        refused: list[tuple[int, Outcome]] = []
        for first in range(0, len(texts), SLICE_TEXTS):
            outcomes = self._tokenize(texts[first : first + SLICE_TEXTS])
            for place, outcome in enumerate(outcomes, first):
                if isinstance(outcome, Refused):
                    refused.append((place, outcome))
                else:
                    places.append(place)
                    tokenized.append(outcome)
        lacking = len(tokenized) if self._tokenizer.lacks_prompt(self._options) else 0
        self.warnings += Warnings.of(tokenized, lacking)
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
        self._threads.shutdown(cancel_futures=True)
        if self._started:
            self._engine.close()

    def _run(self, places: list[int], texts: list[TokenizedText]) -> list[tuple[int, Outcome]]:
        return list(zip(places, self._plan.compute(texts, self._checked), strict=True))

    def _checked(self, tasks: Sequence[Task]) -> list[Output]:
        outputs = self._engine.run(tasks)
        check_outputs(tasks, outputs, self._engine.hidden_size)
        return outputs

    def _tokenize(self, texts: Sequence[str]) -> list[TokenizedText | Refused]:
        try:
            tokenized = self._tokenizer.tokenize(texts, self._options)
        except (InputTooLong, Unprocessable) as error:
            if len(texts) == 1:
                return [Refused.of(error)]
            return [outcome for text in texts for outcome in self._tokenize([text])]
        pairs = zip(texts, tokenized, strict=True)
        return [self._plan.prepare(given, text) for given, text in pairs]


def start_engine(settings: Settings, artifact: Artifact) -> Engine:
    """Start the settings' engine, and check it on the artifact's golden texts.

    Raises:
        ModelError: the artifact cannot be loaded, or the engine disagrees with PyTorch.
        ServiceError: the engine cannot be started.

    """
    return engine_factories(settings, artifact, GoldenCheck(artifact), torch_hosts(settings))[
        settings.engine
    ]()


def tokenizing(tokenizer: TextTokenizer, encoding: Encoding) -> Options:
    """Return the tokenisation options of the texts.

    Raises:
        UsageError: the model has no prompt of this name.

    """
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


def check_encoding(artifact: Artifact, encoding: Encoding) -> None:
    """Check that the model can compute the requested output.

    Raises:
        UsageError: the layer or the dimensions do not exist.
        NotExported: a foreign graph lacks the output.

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
    layer = encoding.layer % states
    if encoding.kind == "stats":
        message = lacking(manifest, HeadMaps, GraphMaps)
    else:
        message = lacking_state(manifest, layer)
        if encoding.kind == "importance":
            message = message or lacking(manifest, HeadOutputs)
    if message:
        raise NotExported(message)
