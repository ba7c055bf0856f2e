"""Recomputation of layers: hidden states of texts with patched heads, and parts of layers.

A forward pass of all texts comes first. Layers are then recomputed with the float32 weights, one
layer of a text at a time. These are the layers whose head outputs or parts are needed, and for a
patched text all layers from its first patched layer on.

Notation: S tokens of one text, H hidden size, L layers, N heads, p size of a head's values.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from model.artifact.layer_parts import LayerStep, PartName
from model.config.encoder import EncoderConfig
from model.numerics.pooling import Pool, pool
from service.engines.contract import Floats, LayerTask, Output, Pooling, TextTask
from service.errors import ReplyTooLarge, Unprocessable
from service.inference.attention.stream import LAYER_BYTES
from service.inference.encoding import EncodeOptions, HeadPatch, PreparedTexts, TextEncoding
from service.inference.layer_vectors import encoding_of, joined
from service.scheduler.outputs import requested
from service.scheduler.promises import Promise

COST = 1.5
"""Time of a recomputed layer, as a multiple of the layer's share of the forward pass."""
_NOTHING = np.float32(0)
Place = tuple[int, int]
"""Index of a text, and index of a hidden state or layer."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """Requested arrays of a layer."""

    heads: dict[int, Floats]
    """Output `[S, p]` of each requested head, by index."""
    parts: dict[PartName, Floats]
    state: Floats | None


@dataclass(frozen=True, slots=True)
class _Reduction:
    """Function that extracts the requested arrays of a layer."""

    heads: frozenset[int] = frozenset()
    parts: tuple[PartName, ...] = ()
    state: bool = False

    def __call__(self, output: Output) -> _Kept:
        """Return the arrays, with copies of the heads, in the thread that computed the layer."""
        layer = requested(output.parts)
        return _Kept(
            {head: layer.heads[head].copy() for head in self.heads},
            {name: getattr(layer, name) for name in self.parts},
            layer.state if self.state else None,
        )


def working_bytes(prepared: PreparedTexts, config: EncoderConfig, options: EncodeOptions) -> int:
    """Return the maximum bytes that a request keeps in memory beside its reply.

    Raises:
        Unprocessable: a patch is between texts of different lengths.
        ReplyTooLarge: a text is too long for the recomputation of its layers.

    """
    return LayerRuns(prepared, config, options).working_bytes if options.recomputes else 0


@dataclass
class LayerRuns:
    """Recomputation of layers for the texts of one request."""

    prepared: PreparedTexts
    config: EncoderConfig
    options: EncodeOptions
    poolings: Sequence[Pooling] = ()
    """Pooling of each text; its layer is ignored."""
    pool: Pool = pool
    """Pooling of states; the artifact's own."""
    _patches: dict[int, list[HeadPatch]] = field(init=False)
    """Index of a patched text → its patches."""
    _states: dict[Place, Floats] = field(init=False, default_factory=dict)
    """Hidden states `[S, H]`, by text and index of the state."""
    _heads: dict[tuple[int, int, int], Floats] = field(init=False, default_factory=dict)
    """Outputs `[S, p]` of heads, by source text, layer and head."""
    _parts: dict[Place, dict[PartName, Floats]] = field(init=False, default_factory=dict)
    """Parts of layers, by text and index of the hidden state that the layer outputs."""

    def __post_init__(self) -> None:
        """Group the patches by text, and reject requests that cannot be computed.

        Raises:
            Unprocessable: a patched text and its source differ in their number of tokens.
            ReplyTooLarge: the maps of a layer take too much memory.

        """
        self._patches = defaultdict(list)
        lengths = [len(text.input_ids) for text in self.prepared.texts]
        for patch in self.options.patches:
            source, text = lengths[patch.source], lengths[patch.text]
            if source != text:
                raise Unprocessable(
                    f"patch: inputs[{patch.source}] has {source} tokens and inputs[{patch.text}] "
                    f"{text}: outputs of heads are replaced token by token, so that both need as "
                    "many; change a text, or choose texts with `to`"
                )
            self._patches[patch.text].append(patch)
        for index in {text for text, _ in self._alone()} | self._patches.keys():
            tokens = lengths[index]
            size = 4 * self.config.num_attention_heads * tokens**2
            if size > LAYER_BYTES:
                raise ReplyTooLarge(
                    f"inputs[{index}] has {tokens} tokens: the maps of a layer that is computed "
                    f"again take {size} bytes, the limit is {LAYER_BYTES}; send a shorter text"
                )

    @property
    def working_bytes(self) -> int:
        """Maximum bytes of the hidden states and head outputs in memory."""
        lengths = [len(text.input_ids) for text in self.prepared.texts]
        rows = sum(lengths[text] for text, _ in self._recorded())
        rows += sum(lengths[text] for text in self._patches) * (1 + len(self.options.states))
        heads = sum(lengths[patch.source] for patch in self.options.patches)
        return 4 * (rows * self.config.hidden_size + heads * self.config.head_size)

    async def encode(self) -> list[TextEncoding]:
        """Compute each text's states, pooled vectors before normalisation, and parts.

        Raises:
            Overloaded: the queue has no room, or the deadline cannot be met.
            EngineTimeout: the deadline passed.
            ServiceError: the engine failed.

        """
        promise = Promise(self._tokens())
        caller = dataclasses.replace(self.prepared.caller, promise=promise)
        self.prepared = dataclasses.replace(self.prepared, caller=caller)
        try:
            await self._forward()
            await self._recompute()
            await self._run_patched()
        finally:
            promise.end()
        texts = range(len(self.prepared.texts))
        return await asyncio.to_thread(lambda: [self._encoding(text) for text in texts])

    def _first(self, text: int) -> int:
        """Return the index of a text's last hidden state that no patch changes."""
        return min((patch.layer for patch in self._patches.get(text, ())), default=self._last)

    @property
    def _last(self) -> int:
        """Index of the last requested hidden state."""
        return max(self.options.states)

    def _recorded(self) -> list[Place]:
        """Return the hidden states to record in the forward pass, ascending for each text."""
        places = set(self._alone())
        for text in range(len(self.prepared.texts)):
            first = self._first(text)
            places |= {(text, state) for state in self.options.states if state <= first}
            if first < self._last:
                places.add((text, first))
        return sorted(places)

    def _alone(self) -> dict[Place, _Reduction]:
        """Return the arrays to extract from layers whose input is a recorded state."""
        heads = defaultdict[Place, set[int]](set)
        for patch in self.options.patches:
            heads[patch.source, patch.layer].add(patch.head)
        wanted = {place: _Reduction(frozenset(layer)) for place, layer in heads.items()}
        for text in range(len(self.prepared.texts)) if self.options.parts else ():
            for state in self.options.states:
                if state <= self._first(text):
                    place = text, state - 1
                    own = wanted.get(place, _Reduction())
                    wanted[place] = dataclasses.replace(own, parts=self.options.parts)
        return wanted

    def _tokens(self) -> int:
        """Return the cost of the request, as the number of tokens with equal encoding time."""
        lengths = [len(text.input_ids) for text in self.prepared.texts]
        total = sum(lengths) + sum(self._cost(lengths[text]) for text, _ in self._alone())
        for text in self._patches:
            total += max(0, self._last - self._first(text)) * self._cost(lengths[text])
        return total

    def _cost(self, tokens: int) -> int:
        return math.ceil(COST * tokens / self.config.num_hidden_layers)

    async def _forward(self) -> None:
        """Run the forward pass of all texts, and record hidden states."""
        layers = defaultdict[int, list[int]](list)
        for text, state in self._recorded():
            layers[text].append(state)
        tasks = [
            TextTask(
                text.input_ids,
                text.segment_ids,
                tuple(layers[n]),
                ablated=self.options.ablated,
                pixels=text.pixels,
            )
            for n, text in enumerate(self.prepared.texts)
        ]
        done = await self.prepared.scheduler.submit("encode", tasks, self.prepared.caller)
        self.prepared.timings.add(done)
        for text, result in enumerate(done):
            states = zip(layers[text], result.value.hidden, strict=True)
            self._states |= {(text, state): array for state, array in states}

    async def _recompute(self) -> None:
        """Recompute the layers whose input is a recorded state."""
        wanted = self._alone()
        if not wanted:
            return
        tasks = [self._task(place[0], self._states[place], place[1], {}) for place in wanted]
        for place, kept in zip(wanted, await self._done(tasks, [*wanted.values()]), strict=True):
            text, layer = place
            self._heads |= {(text, layer, head): array for head, array in kept.heads.items()}
            if kept.parts:
                self._parts[text, layer + 1] = kept.parts

    async def _run_patched(self) -> None:
        """Compute patched texts layer by layer, with all texts of a layer in one batch."""
        running = {
            text: self._states[text, self._first(text)]
            for text in self._patches
            if self._first(text) < self._last
        }
        for layer in range(min(map(self._first, running), default=self._last), self._last):
            texts = [text for text in running if self._first(text) <= layer]
            asked = layer + 1 in self.options.states
            keep = _Reduction(parts=self.options.parts if asked else (), state=True)
            tasks = [
                self._task(text, running[text], layer, self._replaced(text, layer))
                for text in texts
            ]
            for text, kept in zip(texts, await self._done(tasks, [keep] * len(texts)), strict=True):
                assert kept.state is not None  # noqa: S101 - it was requested
                running[text] = kept.state
                if asked:
                    self._states[text, layer + 1] = kept.state
                    self._parts[text, layer + 1] = kept.parts

    def _replaced(self, text: int, layer: int) -> dict[int, Floats]:
        """Return the replacement outputs of the patched heads in a layer of a text."""
        return {
            patch.head: self._heads[patch.source, layer, patch.head]
            for patch in self._patches[text]
            if patch.layer == layer
        }

    def _task(
        self, text: int, states: Floats, layer: int, replaced: Mapping[int, Floats]
    ) -> LayerTask:
        heads = self.config.num_attention_heads
        mask = np.ones(heads, np.float32)
        shape = heads, len(states), self.config.head_size
        patch = np.zeros(shape, np.float32) if replaced else np.broadcast_to(_NOTHING, shape)
        for of_layer, head in self.options.ablated:
            if of_layer == layer:
                mask[head] = 0
        for head, output in replaced.items():
            mask[head], patch[head] = 0, output
        step = LayerStep(states, layer, mask, patch, self.prepared.texts[text].adapter)
        return LayerTask(step, self._cost(len(states)))

    async def _done(self, tasks: Sequence[LayerTask], keep: Sequence[_Reduction]) -> list[_Kept]:
        prepared = self.prepared
        done = await prepared.scheduler.resume("encode", tasks, keep, prepared.caller)
        prepared.timings.add(done)
        return [result.value for result in done]

    def _encoding(self, text: int) -> TextEncoding:
        """Return the arrays of a text, with an axis of layers if `layers` is not empty."""
        options = self.options
        states = [self._states[text, state] for state in options.states]
        parts = {
            name: joined([self._parts[text, state][name] for state in options.states], options)
            for name in options.parts
        }
        spans = options.spans[text] if options.spans else None
        encoding = encoding_of(states, options, self.poolings[text], spans, own_pool=self.pool)
        return dataclasses.replace(encoding, parts=parts)
