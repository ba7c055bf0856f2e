"""Token ids in place of texts, read according to the setting `--token-ids`.

Clients that count tokens in OpenAI's vocabulary send ids of this vocabulary. Ids do not identify
their vocabulary: another tokenizer reads them as another text, without an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

from service.errors import Unprocessable
from service.inference.tokenization.cl100k import Cl100k
from service.inference.tokenization.inputs import Input, TokenIds, characters

TokenIdsSetting = Literal["refuse", "model", "cl100k"]
INLINE_IDS = 512
"""Maximum number of ids that are decoded on the event loop; more are decoded in a thread."""


async def read_token_ids(
    inputs: Sequence[Input], setting: TokenIdsSetting, cl100k: Cl100k | None
) -> Sequence[Input]:
    """Return a request's inputs, with token ids handled by the setting.

    Args:
        inputs: texts and token ids of the field `input`.
        setting: `refuse` rejects ids, `model` keeps them, `cl100k` decodes them to text.
        cl100k: decoder; None unless the setting is `cl100k`.

    Raises:
        Unprocessable: ids are rejected or cannot be decoded.

    """
    places = [index for index, item in enumerate(inputs) if isinstance(item, TokenIds)]
    if setting == "model" or not places:
        return inputs
    if cl100k is None:
        raise Unprocessable(
            f"input[{places[0]}]: token ids are refused, as they may be of another vocabulary than "
            "the model's. Send texts (LangChain's OpenAIEmbeddings does with "
            "check_embedding_ctx_length=False), or serve with `--token-ids model`, which takes the "
            "model's own ids, or `--token-ids cl100k`, which decodes OpenAI's"
        )

    def decoded() -> list[Input]:
        return [
            cl100k.decode(f"input[{index}]", item.ids) if isinstance(item, TokenIds) else item
            for index, item in enumerate(inputs)
        ]

    if characters(inputs) <= INLINE_IDS:
        return decoded()
    return await asyncio.to_thread(decoded)
