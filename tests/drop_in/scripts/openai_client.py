"""openai: synchronous, base64 (its default), floats, asynchronous calls at once, and pictures.

Pictures are sent as Jina and vLLM document for this client.
"""

import asyncio

from asking import FILES, KEY, LONG, MODEL, PICTURES, TEXTS, URL, URLS, failure, tell
from openai import AsyncOpenAI, OpenAI
from openai.types import CreateEmbeddingResponse

client = OpenAI(base_url=f"{URL}/v1", api_key=KEY)


def embed(texts: list[str], **more: str) -> list[list[float]]:
    answer = client.embeddings.create(model=MODEL, input=texts, **more)
    return [one.embedding for one in answer.data]


async def at_once() -> list[list[list[float]]]:
    async with AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY) as client:
        calls = [client.embeddings.create(model=MODEL, input=TEXTS) for _ in range(4)]
        return [[one.embedding for one in answer.data] for answer in await asyncio.gather(*calls)]


def picture(url: str) -> list[float]:
    part = {"type": "image_url", "image_url": {"url": url}}
    body = {
        "model": PICTURES,
        "messages": [{"role": "user", "content": [part]}],
        "encoding_format": "float",
    }
    answer = client.post("/embeddings", cast_to=CreateEmbeddingResponse, body=body)
    return answer.data[0].embedding


images = client.embeddings.create(model=PICTURES, input=[{"image": file} for file in FILES])
stranger = OpenAI(base_url=f"{URL}/v1", api_key="wrong")
tell(
    models=[model.id for model in client.models.list()],
    vectors=embed(TEXTS),
    others=[embed(TEXTS, encoding_format="float"), *asyncio.run(at_once())],
    pictures=[[one.embedding for one in images.data], [*map(picture, URLS)]],
    error=failure(lambda: embed([LONG])),
    refused=failure(lambda: stranger.embeddings.create(model=MODEL, input="a")),
)
