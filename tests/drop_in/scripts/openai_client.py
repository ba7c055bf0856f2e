"""openai: synchronous, base64 (its default), floats, and asynchronous calls at once."""

import asyncio

from asking import KEY, LONG, MODEL, TEXTS, URL, failure, tell
from openai import AsyncOpenAI, OpenAI

client = OpenAI(base_url=f"{URL}/v1", api_key=KEY)


def embed(texts: list[str], **more: str) -> list[list[float]]:
    answer = client.embeddings.create(model=MODEL, input=texts, **more)
    return [one.embedding for one in answer.data]


async def at_once() -> list[list[list[float]]]:
    async with AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY) as client:
        calls = [client.embeddings.create(model=MODEL, input=TEXTS) for _ in range(4)]
        return [[one.embedding for one in answer.data] for answer in await asyncio.gather(*calls)]


stranger = OpenAI(base_url=f"{URL}/v1", api_key="wrong")
tell(
    models=[model.id for model in client.models.list()],
    vectors=embed(TEXTS),
    others=[embed(TEXTS, encoding_format="float"), *asyncio.run(at_once())],
    error=failure(lambda: embed([LONG])),
    refused=failure(lambda: stranger.embeddings.create(model=MODEL, input="a")),
)
