"""mem0's embedder of OpenAI."""

from asking import KEY, LONG, MODEL, TEXTS, URL, failure, tell
from mem0.configs.embeddings.base import BaseEmbedderConfig
from mem0.embeddings.openai import OpenAIEmbedding


def embedder(key: str) -> OpenAIEmbedding:
    config = BaseEmbedderConfig(model=MODEL, api_key=key, openai_base_url=f"{URL}/v1")
    return OpenAIEmbedding(config)


client = embedder(KEY)
tell(
    vectors=client.embed_batch(TEXTS),
    others=[[client.embed(text) for text in TEXTS]],
    error=failure(lambda: client.embed(LONG)),
    refused=failure(lambda: embedder("wrong").embed("a")),
)
