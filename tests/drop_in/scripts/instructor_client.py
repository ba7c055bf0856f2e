"""OpenAI's client as instructor patches it: embeddings still work."""

import instructor
from asking import KEY, LONG, MODEL, TEXTS, URL, failure, tell
from openai import OpenAI


def client(key: str) -> instructor.Instructor:
    return instructor.from_openai(OpenAI(base_url=f"{URL}/v1", api_key=key))


def embed(texts: list[str], key: str = KEY) -> list[list[float]]:
    answer = client(key).client.embeddings.create(model=MODEL, input=texts)
    return [item.embedding for item in answer.data]


tell(
    vectors=embed(TEXTS),
    error=failure(lambda: embed([LONG])),
    refused=failure(lambda: embed(["a"], "wrong")),
)
