"""Token ids in place of texts, as the setting `--token-ids` has them read.

Clients that count tokens in OpenAI's vocabulary send its ids, and the ids do not say whose they
are: read by another vocabulary they are another text, without any error.
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
"""Ids that are decoded on the event loop; more are decoded in a thread."""


async def read_token_ids(
    inputs: Sequence[Input], setting: TokenIdsSetting, cl100k: Cl100k | None
) -> Sequence[Input]:
    """Return a request's inputs with token ids as the setting has them.

    Args:
        inputs: of `input`.
        setting: `refuse`; `model`, which leaves ids as they are; or `cl100k`, which decodes them.
        cl100k: decodes; None where the setting is another.

    Raises:
        Unprocessable: ids are refused, or cannot be decoded.

    """
    given = [index for index, one in enumerate(inputs) if isinstance(one, TokenIds)]
    if setting == "model" or not given:
        return inputs
    if cl100k is None:
        raise Unprocessable(
            f"input[{given[0]}]: token ids are refused, as they may be of another vocabulary than "
            "the model's. Send texts (LangChain's OpenAIEmbeddings does with "
            "check_embedding_ctx_length=False), or serve with `--token-ids model`, which takes the "
            "model's own ids, or `--token-ids cl100k`, which decodes OpenAI's"
        )

    def decoded() -> list[Input]:
        return [
            cl100k.decode(f"input[{index}]", one.ids) if isinstance(one, TokenIds) else one
            for index, one in enumerate(inputs)
        ]

    if characters(inputs) <= INLINE_IDS:
        return decoded()
    return await asyncio.to_thread(decoded)
