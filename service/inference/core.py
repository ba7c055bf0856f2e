"""Inference of one model, as all dialects call it: texts or pictures in, arrays and timings out.

Notation: S tokens of one text, H hidden size, L layers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from model.artifact.manifest import Artifact
from model.artifact.vectors import TextVectors
from model.config.precision import Use
from model.numerics.quantization import FLOAT32
from model.runtimes.capabilities import lacking
from model.runtimes.contract import Heads
from service.errors import NotExported, NotVerified, Unprocessable
from service.inference.attention.maps import AttentionSelection, Convert
from service.inference.attention.stream import AttentionStream
from service.inference.encoding import EncodeOptions, PreparedTexts
from service.inference.engine_pool import EnginePool
from service.inference.long_texts import encode_windows
from service.inference.outputs.chunks import ChunkOptions, check_alone, chunks_of
from service.inference.outputs.field import TextArrays
from service.inference.outputs.spans import MOST_SPANS, span_arrays
from service.inference.plan import Plan
from service.inference.timings import Timings, Warnings
from service.inference.tokenization.inputs import Input
from service.inference.tokenization.request_tokenizer import RequestTokenizer
from service.inference.tokenization.text import Tower
from service.inference.tokenization.tokenizer import Options, TextTokenizer
from service.scheduler.call import NOTHING, Call
from service.scheduler.lanes import LaneName

if TYPE_CHECKING:  # which needs Pillow
    from service.inference.pictures import RequestPictures

Key = tuple[Hashable, ...]
"""Values of the fields that decide a plan."""
MOST_PLANS = 256
"""Maximum number of plans that a model keeps."""


class Inference:
    """Reader of inputs and engines of an artifact."""

    def __init__(
        self,
        artifact: Artifact,
        vectors: TextVectors,
        reader: RequestTokenizer | RequestPictures,
        engines: EnginePool,
        *,
        allow_unverified: bool = False,
        tower: Tower | None = None,
    ) -> None:
        """Initialise from an artifact's parts."""
        self.artifact = artifact
        self.manifest = manifest = artifact.manifest
        self.config = manifest.config
        self.decoder = manifest.decoder
        self.sentence = manifest.sentence
        self.vectors = vectors
        self.reader, self.limits = reader, reader.limits
        self.engines = engines
        self.part_costs: dict[str, float] = {}
        """Measured cost of a decomposition by engine name: see `explanation.decomposition`."""
        self.tower = tower
        self.plans: dict[Key, tuple[Plan, Options]] = {}
        """Plan and options of tokenisation of earlier requests, by the fields that decide both."""
        self._allow_unverified = allow_unverified
        reader.measure()

    @property
    def request_tokenizer(self) -> RequestTokenizer:
        """Tokenizer of requests."""
        if not isinstance(self.reader, RequestTokenizer):
            raise Unprocessable(
                f"{self.manifest.model} reads pictures and has no tokenizer: choose a model of "
                "texts, or send pictures to /encode or /attention"
            )
        return self.reader

    @property
    def tokenizer(self) -> TextTokenizer:
        """Tokenizer of texts, with the service's limits."""
        return self.request_tokenizer.tokenizer

    async def prepare(
        self,
        inputs: Sequence[Input],
        options: Options,
        caller: Call,
        lane: LaneName,
        engine: str | None = None,
        beside: int = 0,
    ) -> PreparedTexts:
        """Tokenise a request's inputs, or prepare its pictures, and select the engine.

        The room of the lane is checked before; `beside` counts further characters of the request.

        Raises:
            Unprocessable: too many inputs, or one that does not fit the model.
            EngineNotInstalled, EngineUnavailable: the service cannot compute by the engine.
            NotExported: the lane is `attention`, and the model is a static embedding.
            Overloaded: the queue is full, or the deadline cannot be met.

        """
        if lane == "attention":
            self.require(Heads)
        began = time.monotonic()
        scheduler = await self.engines.get(engine)
        demand = self.reader.demand(inputs, options, caller, beside)
        caller = scheduler.admit(lane, caller, demand)
        if demand is NOTHING:
            texts = self.request_tokenizer.at_once(inputs, options, caller)
        else:
            texts = await self.reader.tokenize(inputs, options, caller, beside)
            caller.correct_estimate(sum(text.size for text in texts))
        for text in texts if self.tower else ():
            text.tower = self.tower
        lengths = [*map(attrgetter("size"), texts)]
        lacking = len(texts) if self.reader.expects_prompt and options.unprompted else 0
        warnings = Warnings.of(texts, lacking)
        self.engines.observer.tokenized(lengths, warnings.counts())
        seconds = time.monotonic() - began
        if self.manifest.images:
            self.engines.observer.pictures_read(seconds)
        timings = Timings(sum(lengths), began, seconds, warnings=warnings)
        window = (options.max_tokens or self.limits.max_tokens) if options.windows else 0
        return PreparedTexts(texts, caller, scheduler, timings, inputs, window_tokens=window)

    async def prepare_chunks(
        self,
        inputs: Sequence[str],
        chunk: ChunkOptions,
        options: Options,
        caller: Call,
        engine: str | None,
    ) -> PreparedTexts:
        """Cut texts into chunks, and tokenise each chunk as an input of its own."""
        began, tokenizer = time.monotonic(), self.request_tokenizer
        texts = await tokenizer.tokenize(inputs, replace(options, windows=True), caller)
        most = min(MOST_SPANS, tokenizer.limits.max_inputs)
        chunks = await asyncio.to_thread(chunks_of, inputs, texts, chunk, most)
        check_alone(texts, chunks, tokenizer.tokenizer.limit(options))
        parts: list[str] = []
        for given, text, own in zip(inputs, texts, chunks, strict=True):
            text.spans = own
            parts += [given[start:end] for start, end in own.places.tolist()]
        named = replace(options, naming="chunk {} of all inputs")
        prepared = await self.prepare(parts, named, caller, "encode", engine)
        prepared.timings.began = began
        prepared.timings.tokenization_seconds = time.monotonic() - began
        return replace(prepared, whole=texts)

    async def with_targets(
        self, prepared: PreparedTexts, targets: Sequence[str], options: Options
    ) -> PreparedTexts:
        """Tokenise the decoder's target of each text of a request."""
        began, caller = time.monotonic(), prepared.caller
        tokenized = await self.request_tokenizer.tokenize(
            targets, options, caller, prepared.characters
        )
        for text, target in zip(prepared.texts, tokenized, strict=True):
            text.target = target
        tokens, seconds = sum(text.size for text in tokenized), time.monotonic() - began
        more = Timings(tokens, began, seconds, warnings=Warnings.of(tokenized))
        return replace(prepared, timings=prepared.timings + more)

    def keep(self, key: Key, plan: tuple[Plan, Options]) -> None:
        """Keep a plan for later requests with equal fields; the oldest ones are dropped."""
        if len(self.plans) >= MOST_PLANS:
            del self.plans[next(iter(self.plans))]
        self.plans[key] = plan

    def plan(self, options: EncodeOptions) -> Plan:
        """Return the plan of the requested outputs.

        Raises:
            Unprocessable: the model lacks an output, or the options do not fit it.
            NotExported: a head's output of a static embedding.
            NotVerified: a use that failed the artifact's verification.

        """
        plan = Plan(options, self.manifest, self.vectors)
        if options.ablated:
            self.require_heads()
        for use in sorted(plan.uses, reverse=True):
            self.require_use(use)
        return plan

    async def encode(self, prepared: PreparedTexts, plan: Plan) -> Sequence[TextArrays]:
        """Return the requested arrays of each text.

        Raises:
            Unprocessable: a feature exceeds the requested type.
            Overloaded: the queue is full, or the deadline cannot be met.

        """
        if prepared.whole:
            found = await self.encode(replace(prepared, whole=()), plan.of_chunks())
            vectors = np.stack([own["pooled"] for own in found], axis=-2)
            return await plan.converted(span_arrays(prepared.whole, vectors))
        if windowed := prepared.window_tokens and prepared.windowed:
            arrays: Sequence[TextArrays] = await encode_windows(
                prepared, plan, self.config.hidden_size
            )
        else:
            texts = prepared.texts
            tasks = [*map(plan.task, texts)]
            if plan.unwindowed:  # which may add tokens
                own_tokens = sum(len(text.input_ids) for text in texts)
                prepared.timings.tokens += sum(task.tokens for task in tasks) - own_tokens
            reduce = plan.reductions(texts)
            results = await prepared.scheduler.submit("encode", tasks, prepared.caller, reduce)
            prepared.timings.add(results)
            arrays = [*map(attrgetter("value"), results)]
        if windowed or plan.projects:
            await asyncio.to_thread(plan.complete, arrays)
        if plan.quantization is FLOAT32:
            return arrays
        return await plan.converted(arrays)

    def require_use(self, use: Use) -> None:
        """Raise if a use failed the artifact's verification."""
        verdict = self.manifest.verification.verdict(use)
        if not (verdict.passed or self._allow_unverified):
            what = use if use == "vectors" else "attention weights and hidden states"
            raise NotVerified(
                f"this {self.manifest.precision} artifact is not served for {what}, which "
                f"failed its verification ({verdict.failed}): serve an export in fp32, or pass "
                "--allow-unverified"
            )

    def require(self, kind: type) -> None:
        """Raise if the artifact lacks a capability of `model.runtimes.capabilities`."""
        if message := lacking(self.manifest, kind):
            raise NotExported(message)

    def require_heads(self) -> None:
        """Raise if the model has no attention heads, or they failed its verification."""
        self.require(Heads)
        self.require_use("heads")

    def attention(
        self,
        prepared: PreparedTexts,
        selection: AttentionSelection,
        convert: Convert = np.asarray,
    ) -> AttentionStream:
        """Return a stream of the attention of each text, a layer at a time.

        Raise as `require_heads`, or `ReplyTooLarge` if the maps of a layer are too large.
        """
        self.require_heads()
        ends = self.reader.separator_ids, self.reader.target_separator_ids
        finish = self.vectors.project if self.sentence.modules else None
        return AttentionStream(prepared, self.manifest, selection, ends, convert, finish)

    def close(self) -> bool:
        """Wait for running work to finish; return whether it did."""
        self.reader.close()
        return self.engines.close()
