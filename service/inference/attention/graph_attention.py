"""The attention of some texts from a foreign graph, which gives the maps of all layers at once.

Notation: S tokens of one text, L layers, N heads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from service.engines.contract import Floats, Output, TextTask
from service.errors import ReplyTooLarge
from service.inference.attention.layer_passes import layer_passes
from service.inference.attention.maps import LayerMaps, LayerResults, TextSummary
from service.inference.attention.stream import LAYER_BYTES, AttentionStream


class GraphAttentionStream(AttentionStream):
    """One request's attention, computed a text at a time as it is read."""

    def __post_init__(self) -> None:
        """Find what is taken of each text.

        Raises:
            ReplyTooLarge: the maps of all layers of a text, whether they are sent or not, are too
                large.

        """
        self.passes = layer_passes(self.selection, self.config)
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
        """Most bytes of maps that are kept at a time."""
        return max(self._bytes(len(text.text.input_ids)) for text in self.texts)

    async def results(self) -> AsyncGenerator[LayerMaps | TextSummary]:
        """The maps of each pass over a text, in order, then the text's summary; text after text.

        Raises:
            ServiceError: the request was not admitted, or the engine failed.

        """
        for index in range(len(self.texts)):
            maps = await self._maps(index)
            gathered = LayerResults()
            for taken in await asyncio.to_thread(self._taken, index, maps):
                await gathered.add(taken)
                yield taken
            del maps  # before the next text's are computed
            yield gathered.complete(TextSummary(index, {}, None, None))

    async def _maps(self, index: int) -> Floats:
        """`[L, N, S, S]` of a text."""
        text, config = self.texts[index].text, self.config
        tokens = len(text.input_ids)
        shape = (config.num_hidden_layers, config.num_attention_heads, tokens, tokens)
        task = TextTask(text.input_ids, text.segment_ids, scores=shape)
        if index == 0:
            done = await self.scheduler.submit("attention", [task], self.caller)
        else:
            done = await self.scheduler.resume("attention", [task], caller=self.caller)
        self.timings.add(done)
        found: Floats = done[0].output.scores
        return found

    def _taken(self, index: int, maps: Floats) -> list[LayerMaps]:
        """What is wanted of each layer."""
        every = tuple(range(maps.shape[1]))
        found = []
        for one in self.passes:
            of_layer = maps[one.layer]
            asked = of_layer if one.heads == every else of_layer[list(one.heads)]
            found.append(self.reduction(index, one)(Output(maps=asked)))
        return found

    def _bytes(self, tokens: int) -> int:
        return 4 * self.config.num_hidden_layers * self.config.num_attention_heads * tokens**2
