"""Attention from a foreign graph, which outputs the maps of all layers at once.

Notation: S tokens of one text, L layers, N heads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from service.engines.contract import Floats, Output, TextTask
from service.errors import ReplyTooLarge
from service.inference.attention.maps import LayerMaps, LayerResults, TextSummary
from service.inference.attention.stream import LAYER_BYTES, AttentionStream
from service.scheduler.outputs import requested


class GraphAttentionStream(AttentionStream):
    """Attention of a request, computed one text at a time as it is consumed."""

    def check_sizes(self) -> None:
        """Raise if the maps of all layers of a text are too large, requested or not.

        Raises:
            ReplyTooLarge: the message has the bytes.

        """
        for index, text in enumerate(self.texts):
            tokens = len(text.text.input_ids)
            if (size := self._bytes(tokens)) > LAYER_BYTES:
                raise ReplyTooLarge(
                    f"inputs[{index}] has {tokens} tokens: a foreign graph gives the maps of all "
                    f"layers together, which take {size} bytes, the limit is {LAYER_BYTES}; send a "
                    "shorter text"
                )

    @property
    def hidden_bytes(self) -> int:
        """Maximum bytes of maps in memory."""
        return max(self._bytes(len(text.text.input_ids)) for text in self.texts)

    async def results(self) -> AsyncGenerator[LayerMaps | TextSummary]:
        """Yield the maps of each pass over a text, then the text's summary, for each text in order.

        Raises:
            ServiceError: the request is not admitted, or the engine fails.

        """
        for index in range(len(self.texts)):
            maps = await self._maps(index)
            gathered = LayerResults()
            for taken in await asyncio.to_thread(self._taken, index, maps):
                await gathered.add(taken)
                yield taken
            del maps  # free memory before the next text
            yield gathered.complete(TextSummary(index, {}, None, None))

    async def _maps(self, index: int) -> Floats:
        """Compute the maps `[L, N, S, S]` of a text."""
        text, config = self.texts[index].text, self.config
        tokens = len(text.input_ids)
        shape = (config.num_hidden_layers, config.num_attention_heads, tokens, tokens)
        task = TextTask(text.input_ids, text.segment_ids, scores=shape)
        if index == 0:
            done = await self.scheduler.submit("attention", [task], self.caller)
        else:
            done = await self.scheduler.resume("attention", [task], caller=self.caller)
        self.timings.add(done)
        return requested(done[0].value.scores)

    def _taken(self, index: int, maps: Floats) -> list[LayerMaps]:
        """Reduce the maps of a text to the requested parts of each pass."""
        all_heads = tuple(range(maps.shape[1]))
        reduced = []
        for layer_pass in self.passes:
            layer, heads = maps[layer_pass.layer], layer_pass.heads
            selected = layer if heads == all_heads else layer[list(heads)]
            reduced.append(self.reduction(index, layer_pass)(Output(maps=selected)))
        return reduced

    def _bytes(self, tokens: int) -> int:
        return 4 * self.config.num_hidden_layers * self.config.num_attention_heads * tokens**2
