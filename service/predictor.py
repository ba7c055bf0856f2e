"""One request: tokenise → submit → shape the reply → timings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from model.artifact import Manifest
from model.compare import TOLERANCES, Comparison, keyed
from model.pooling import l2_normalize
from service import wire
from service.backends import Backends
from service.batching import Batcher
from service.engines.base import Floats, Pooling, Task
from service.errors import ReplyTooLarge, Unprocessable
from service.lanes import Done
from service.schemas import AttentionRequest, EncodeRequest, TextRequest, VerifyRequest
from service.tokenizer import Input, Options, TextTokenizer, TokenizedText, characters

INLINE_CHARACTERS = 512
"""One input of so many is tokenised on the event loop, which takes at most 0.2 ms; to hand it to a
thread and back costs 0.1 ms of processor time. Longer ones and lists go to a thread."""
INLINE_BYTES = 2**18
"""A reply up to this size is written on the event loop; a larger one in a thread."""


@dataclass(frozen=True)
class Bounds:
    """What one request may ask for."""

    max_inputs: int
    max_response_bytes: int


@dataclass(frozen=True)
class Reply:
    """A finished reply and what it took."""

    body: wire.Body
    media_type: str
    tokens: int
    tokenization_seconds: float
    queue_seconds: float
    inference_seconds: float


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
        self._tokenizing = ThreadPoolExecutor(1, "tokenizer")

    async def encode(self, request: EncodeRequest, *, binary: bool) -> Reply:
        """Contextual embeddings, as `POST /encode` promises them.

        Raises:
            ServiceError: whatever a caller can be told went wrong.

        """
        layer = self._layer(request.layer)
        dimensions = self._dimensions(request.dimensions)
        batcher, texts, tokenization_seconds = await self._prepare(request)
        tokens_wanted, pooled_wanted = ("tokens" in request.outputs, "pooled" in request.outputs)
        floats = sum(
            tokens_wanted * len(text.input_ids) * self._config.hidden_size
            + pooled_wanted * dimensions
            for text in texts
        )
        as_base64 = request.encoding_format == "base64"
        self._check_reply(floats, binary=binary, as_base64=as_base64)
        mode = request.pooling or self._manifest.sentence.pooling
        tasks = [
            Task(
                text.input_ids,
                text.segment_ids,
                hidden_layers=(layer,) if tokens_wanted else (),
                pooling=Pooling(layer, mode, self._first_token(text)) if pooled_wanted else None,
            )
            for text in texts
        ]
        done = await batcher.submit("encode", tasks)
        normalize = self._manifest.sentence.normalize
        if request.normalize is not None:
            normalize = request.normalize

        def write() -> wire.Body:
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

        body = await _write(write, floats)
        return _reply(body, texts, done, tokenization_seconds, binary=binary)

    async def attention(self, request: AttentionRequest, *, binary: bool) -> Reply:
        """Attention weights, as `POST /attention` promises them.

        Raises:
            ServiceError: whatever a caller can be told went wrong.

        """
        layers = _indices("layers", request.layers, self._config.num_hidden_layers)
        heads = _indices("heads", request.heads, self._config.num_attention_heads)
        half = request.dtype == "float16"
        if half and not binary:
            raise Unprocessable("dtype float16 is for the binary form (Accept: safetensors)")
        batcher, texts, tokenization_seconds = await self._prepare(request)
        floats = sum(len(layers) * len(heads) * len(text.input_ids) ** 2 for text in texts)
        self._check_reply(floats, binary=binary, half=half)
        tasks = [
            Task(text.input_ids, text.segment_ids, attention_layers=layers, attention_heads=heads)
            for text in texts
        ]
        done = await batcher.submit("attention", tasks)

        def write() -> wire.Body:
            results = [
                wire.AttentionResult(text, _present(item.output.attention))
                for text, item in zip(texts, done, strict=True)
            ]
            fields = {"layers": list(layers), "heads": list(heads)}
            header = wire.Header(self._manifest.model, batcher.engine.name, fields)
            if binary:
                return wire.attention_safetensors(header, results, half=half)
            return wire.attention_json(header, results)

        body = await _write(write, floats)
        return _reply(body, texts, done, tokenization_seconds, binary=binary)

    async def verify(self, request: VerifyRequest) -> Comparison:
        """The same texts through PyTorch and ONNX: every hidden state, every map, pooled.

        Raises:
            ServiceError: whatever a caller can be told went wrong.

        """
        texts = await self._tokenize(request.inputs, Options(truncate=request.truncate))
        reference = await self.backends.get("torch")
        candidate = await self.backends.get("onnx")
        layers = self._config.num_hidden_layers
        tasks = [
            Task(
                text.input_ids,
                text.segment_ids,
                hidden_layers=tuple(range(layers + 1)),
                attention_layers=tuple(range(layers)),
                attention_heads=tuple(range(self._config.num_attention_heads)),
            )
            for text in texts
        ]
        comparison = Comparison()
        tolerances = TOLERANCES[self._manifest.precision]
        pooling = self._manifest.sentence.pooling
        for task in tasks:
            (expected,), (found,) = await asyncio.gather(
                reference.submit("attention", [task]), candidate.submit("attention", [task])
            )
            reference_tensors, candidate_tensors = (
                keyed(done.output.hidden, _present(done.output.attention), pooling)
                for done in (expected, found)
            )
            await asyncio.to_thread(
                comparison.add, reference_tensors, candidate_tensors, tolerances
            )
        return comparison

    def close(self) -> None:
        """Let running work finish."""
        self._tokenizing.shutdown(wait=True)
        self.backends.close()

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

    def _layer(self, layer: int) -> int:
        states = self._config.num_hidden_layers + 1
        if not -states <= layer < states:
            raise Unprocessable(f"layer {layer} is not in {-states} … {states - 1}")
        return layer % states

    def _dimensions(self, dimensions: int | None) -> int:
        size = self._config.hidden_size
        if dimensions is not None and dimensions > size:
            raise Unprocessable(f"dimensions {dimensions} is more than the model's {size}")
        return dimensions or size

    def _first_token(self, text: TokenizedText) -> int:
        if self._manifest.sentence.include_prompt:
            return 0
        return min(text.prompt_tokens, len(text.input_ids) - 1)

    def _check_reply(
        self, floats: int, *, binary: bool, as_base64: bool = False, half: bool = False
    ) -> None:
        each = wire.JSON_BYTES_PER_FLOAT
        if binary:
            each = 2 if half else 4
        elif as_base64:
            each = 6
        limit = self._bounds.max_response_bytes
        if floats * each > limit:
            raise ReplyTooLarge(
                f"the reply would have about {floats * each} bytes, more than {limit}: ask for "
                "less, or for the binary form (Accept: application/vnd.safetensors)"
            )


def _indices(name: str, asked: Sequence[int] | None, size: int) -> tuple[int, ...]:
    """Negative ones counted from the end; in the order asked."""
    if asked is None:
        return tuple(range(size))
    for index in asked:
        if not -size <= index < size:
            raise Unprocessable(f"{name}: {index} is not in {-size} … {size - 1}")
    indices = tuple(index % size for index in asked)
    if len(set(indices)) != len(indices):
        raise Unprocessable(f"{name}: one is listed twice (negative ones count from the end)")
    return indices


def _finish(pooled: Floats | None, dimensions: int, *, normalize: bool) -> Floats | None:
    if pooled is None:
        return None
    kept = pooled[:dimensions]
    return l2_normalize(kept) if normalize else kept


def _present(array: Floats | None) -> Floats:
    assert array is not None  # noqa: S101 - the batcher has checked every output
    return array


async def _write(write: Callable[[], wire.Body], floats: int) -> wire.Body:
    if floats * wire.JSON_BYTES_PER_FLOAT <= INLINE_BYTES:
        return write()
    return await asyncio.to_thread(write)


def _reply(
    body: wire.Body,
    texts: Sequence[TokenizedText],
    done: Sequence[Done],
    tokenization_seconds: float,
    *,
    binary: bool,
) -> Reply:
    return Reply(
        body=body,
        media_type=wire.SAFETENSORS if binary else wire.JSON,
        tokens=wire.usage(texts)["tokens"],
        tokenization_seconds=tokenization_seconds,
        queue_seconds=max(item.queue_seconds for item in done),
        inference_seconds=max(item.inference_seconds for item in done),
    )
