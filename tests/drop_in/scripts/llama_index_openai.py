"""llama-index's embeddings for OpenAI and for services like it."""

import asyncio

from asking import KEY, LONG, MODEL, TEXTS, URL, failure, tell
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.embeddings.openai_like import OpenAILikeEmbedding

given = {"model_name": MODEL, "api_base": f"{URL}/v1", "max_retries": 1}
client = OpenAIEmbedding(api_key=KEY, **given)
like = OpenAILikeEmbedding(api_key=KEY, **given)
stranger = OpenAILikeEmbedding(api_key="wrong", **given)
tell(
    vectors=client.get_text_embedding_batch(TEXTS),
    others=[
        like.get_text_embedding_batch(TEXTS),
        asyncio.run(like.aget_text_embedding_batch(TEXTS)),
        [client.get_query_embedding(text) for text in TEXTS],
    ],
    error=failure(lambda: like.get_text_embedding(LONG)),
    refused=failure(lambda: stranger.get_text_embedding("a")),
)
