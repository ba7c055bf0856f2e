"""One request: tokenise → submit → shape the reply → timings."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from model.artifact.compare import Comparison
from model.artifact.manifest import Manifest
from model.artifact.pooling import l2_normalize
from service.api.native import forms as wire
from service.api.native.map_forms import BinaryWriter, JsonWriter, json_bytes
from service.api.native.requests import AttentionRequest, EncodeRequest, TextRequest, VerifyRequest
from service.api.native.selection import hidden_layer, maps_asked, vector_size
from service.engines.contract import Floats, Pooling, TextTask
from service.errors import ReplyTooLarge, Unprocessable
from service.inference.attention import GROUP_BYTES, MapsStream, Subject, hidden_bytes
from service.inference.engine_pool import Backends
from service.inference.maps import Part, visits_of
from service.inference.tokenizer import Input, Options, TextTokenizer, TokenizedText, characters
from service.inference.verification import compare_engines
from service.scheduler.batching import Batcher
from service.scheduler.budget import ByteBudget
from service.scheduler.lanes import Done

INLINE_CHARACTERS = 512
"""One input of so many is tokenised on the event loop, which takes at most 0.2 ms; to hand it to a
thread and back costs 0.1 ms of processor time. Longer ones and lists go to a thread."""
WHOLE_BYTES = 2**20
"""A reply of /attention up to this size is complete before it is sent; a larger one is streamed."""
STREAM_BYTES = 4 * GROUP_BYTES
"""What a streamed reply holds in memory at a time."""
FEWER_MAPS = "ask for fewer texts, layers or heads, for top_k or float16"
INLINE_BYTES = 2**18
"""A reply up to this size is written on the event loop; a larger one in a thread."""


@dataclass(frozen=True)
class Bounds:
    """What one request may ask for."""

    max_inputs: int
    max_response_bytes: int
    max_bytes_in_flight: int
    """Of replies together."""


def _nothing() -> None:
    """There is nothing to give back."""


@dataclass(frozen=True)
class Reply:
    """A finished reply and what it took."""

    body: wire.Body
    media_type: str
    tokens: int
    tokenization_seconds: float
    queue_seconds: float
    inference_seconds: float
    rest: AsyncGenerator[Part, None] | None = None
    """What follows the body while it is sent; must be closed."""
    length: int | None = None
    """Of all of it, where that is known beforehand."""
    release: Callable[[], None] = _nothing
    """Gives back what the body holds, once it is sent."""
    began: float = 0.0
    """`time.monotonic()` when the first text was about to be tokenised."""


class Predictor:
    """Answers requests from one artifact's engines."""

    def __init__(
        self, manifest: Manifest, tokenizer: TextTokenizer, backends: Backends, bounds: Bounds
    ) -> None:
        self.backends = backends
        self._manifest = manifest
        self._config = manifest.config
        self._tokenizer = tokenizer
        self._bounds = bounds
        self._budget = ByteBudget(bounds.max_bytes_in_flight)
        self._tokenizing = ThreadPoolExecutor(1, "tokenizer")

    async def encode(self, request: EncodeRequest, *, binary: bool, finish_by: float) -> Reply:
        """Contextual embeddings, as `POST /encode` promises them.

        Args:
            request: what is asked.
            binary: whether the reply is a safetensors file.
            finish_by: `time.monotonic()` at which the reply must have begun.

        Raises:
            ServiceError: whatever a caller can be told went wrong.

        """
        began = time.monotonic()
        layer = hidden_layer(request.layer, self._config)
        dimensions = vector_size(request.dimensions, self._config)
        batcher, texts, tokenization_seconds = await self._prepare(request)
        tokens_wanted, pooled_wanted = ("tokens" in request.outputs, "pooled" in request.outputs)
        floats = sum(
            tokens_wanted * len(text.input_ids) * self._config.hidden_size
            + pooled_wanted * dimensions
            for text in texts
        )
        as_base64 = request.encoding_format == "base64"
        each = 4 if binary else 6 if as_base64 else wire.JSON_BYTES_PER_FLOAT
        size = floats * each
        self._check_reply(size, "ask for fewer texts or less of them", binary=binary)
        mode = request.pooling or self._manifest.sentence.pooling
        tasks = [
            TextTask(
                text.input_ids,
                text.segment_ids,
                hidden_layers=(layer,) if tokens_wanted else (),
                pooling=Pooling(layer, mode, self._first_token(text)) if pooled_wanted else None,
            )
            for text in texts
        ]
        normalize = self._manifest.sentence.normalize
        if request.normalize is not None:
            normalize = request.normalize

        def write(done: Sequence[Done]) -> wire.Body:
            results = [
                wire.EncodeResult(
                    text,
                    item.output.hidden[0] if tokens_wanted else None,
                    _finish(item.output.pooled, dimensions, normalize=normalize),
                )
                for text, item in zip(texts, done, strict=True)
            ]
            header = wire.Header(self._manifest.model, batcher.engine.name, {})
            if binary:
                return wire.encode_safetensors(header, results)
            return wire.encode_json(header, results, as_base64=as_base64)

        self._budget.take(size)
        release = functools.partial(self._budget.give_back, size)
        try:
            done = await batcher.submit("encode", tasks, finish_by)
            if size <= INLINE_BYTES:
                body = write(done)
            else:
                body = await asyncio.to_thread(write, done)
        except BaseException:
            release()
            raise
        return Reply(
            body=body,
            media_type=wire.SAFETENSORS if binary else wire.JSON,
            tokens=wire.usage(texts)["tokens"],
            tokenization_seconds=tokenization_seconds,
            queue_seconds=max(item.queue_seconds for item in done),
            inference_seconds=max(item.inference_seconds for item in done),
            release=release,
            began=began,
        )

    async def attention(
        self, request: AttentionRequest, *, binary: bool, finish_by: float
    ) -> Reply:
        """Attention weights, as `POST /attention` promises them.

        Args:
            request: what is asked.
            binary: whether the reply is a safetensors file.
            finish_by: `time.monotonic()` at which the reply must have begun.

        Raises:
            ServiceError: whatever a caller can be told went wrong.

        """
        began = time.monotonic()
        asked = maps_asked(request, self._config)
        if asked.half and not binary:
            raise Unprocessable("dtype float16 is for the binary form (Accept: safetensors)")
        batcher, texts, tokenization_seconds = await self._prepare(request)
        fields = {"layers": list(asked.layers), "heads": list(asked.heads)}
        header = wire.Header(self._manifest.model, batcher.engine.name, fields)
        writer = (BinaryWriter if binary else JsonWriter)(header, asked, texts)
        lengths = [len(text.input_ids) for text in texts]
        size = writer.length or json_bytes(asked, lengths)
        self._check_reply(size, FEWER_MAPS, binary=binary)
        visits = visits_of(asked, self._config)
        stream = MapsStream(batcher, asked, visits, writer, finish_by)
        layers = len({visit.layer for visit in visits})
        held = size if writer.keeps_back else min(size, STREAM_BYTES)
        parts = self._within_budget(
            stream.parts([self._subject(text) for text in texts]),
            held + hidden_bytes(lengths, layers, self._config.hidden_size),
        )
        if size <= WHOLE_BYTES:
            body, rest = [part async for part in parts], None
        else:
            body, rest = [await anext(parts)], parts
            stream.finish_by = math.inf
        return Reply(
            body=body,
            media_type=writer.media_type,
            tokens=wire.usage(texts)["tokens"],
            tokenization_seconds=tokenization_seconds,
            queue_seconds=stream.timings.queue,
            inference_seconds=stream.timings.inference,
            rest=rest,
            length=writer.length,
            began=began,
        )

    async def verify(self, request: VerifyRequest) -> Comparison:
        """The same texts through PyTorch and ONNX: every hidden state, every map, pooled.

        Raises:
            ServiceError: whatever a caller can be told went wrong.

        """
        texts = await self._tokenize(request.inputs, Options(truncate=request.truncate))
        reference = await self.backends.get("torch")
        candidate = await self.backends.get("onnx")
        return await compare_engines(reference, candidate, texts, self._manifest)

    def close(self) -> bool:
        """Let running work finish; returns whether it has."""
        self._tokenizing.shutdown(wait=True)
        return self.backends.close()

    async def _prepare(self, request: TextRequest) -> tuple[Batcher, list[TokenizedText], float]:
        options = Options(request.truncate, request.truncation_direction, request.prompt_name)
        started = time.monotonic()
        texts = await self._tokenize(request.inputs, options)
        seconds = time.monotonic() - started
        return await self.backends.get(request.backend), texts, seconds

    async def _tokenize(self, inputs: Sequence[Input], options: Options) -> list[TokenizedText]:
        if len(inputs) > self._bounds.max_inputs:
            raise Unprocessable(
                f"{len(inputs)} inputs in one request; at most {self._bounds.max_inputs} are taken"
            )
        if len(inputs) == 1 and characters(inputs) <= INLINE_CHARACTERS:
            texts = self._tokenizer.tokenize(inputs, options)
        else:
            loop = asyncio.get_running_loop()
            texts = await loop.run_in_executor(
                self._tokenizing, self._tokenizer.tokenize, inputs, options
            )
        for index, text in enumerate(texts):
            if text.segment_ids.max() >= self._config.type_vocab_size:
                raise Unprocessable(f"inputs[{index}] is a pair; this model has one segment only")
        return texts

    def _subject(self, text: TokenizedText) -> Subject:
        separators = np.isin(text.input_ids, [*self._tokenizer.separator_ids]).nonzero()[0]
        pooling = Pooling(
            self._config.num_hidden_layers,
            self._manifest.sentence.pooling,
            self._first_token(text),
        )
        return Subject(text, tuple(separators.tolist()), pooling)

    async def _within_budget(self, parts: AsyncGenerator[Part], size: int) -> AsyncGenerator[Part]:
        with self._budget.hold(size):
            async with contextlib.aclosing(parts):
                async for part in parts:
                    yield part
                    del part  # what is sent is not kept while more is computed

    def _first_token(self, text: TokenizedText) -> int:
        if self._manifest.sentence.include_prompt:
            return 0
        return min(text.prompt_tokens, len(text.input_ids) - 1)

    def _check_reply(self, size: int, less: str, *, binary: bool) -> None:
        limit = self._bounds.max_response_bytes
        if size > limit:
            or_binary = "" if binary else f", or for the binary form (Accept: {wire.SAFETENSORS})"
            raise ReplyTooLarge(
                f"the reply would have about {size} bytes, more than {limit}: {less}{or_binary}"
            )


def _finish(pooled: Floats | None, dimensions: int, *, normalize: bool) -> Floats | None:
    if pooled is None:
        return None
    kept = pooled[:dimensions]
    return l2_normalize(kept) if normalize else kept
