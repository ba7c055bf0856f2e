"""litellm's embeddings by OpenAI's route, and its ranking by Infinity's and Cohere's."""

import litellm
from asking import KEY, LONG, MODEL, QUERY, RANKER, TEXTS, URL, failure, tell


def embed(texts: list[str], key: str = KEY) -> list[list[float]]:
    given = {"api_base": f"{URL}/v1", "api_key": key, "num_retries": 0}
    answer = litellm.embedding(f"openai/{MODEL}", input=texts, **given)
    return [one["embedding"] for one in answer.data]


def rank(provider: str) -> list[float]:
    given = {"api_base": URL, "api_key": KEY, "query": QUERY, "documents": TEXTS}
    answer = litellm.rerank(f"{provider}/{RANKER}", **given)
    found = {one["index"]: one["relevance_score"] for one in answer.results}
    return [found[index] for index in range(len(TEXTS))]


tell(
    vectors=embed(TEXTS),
    scores=[rank("infinity"), rank("cohere")],
    error=failure(lambda: embed([LONG])),
    refused=failure(lambda: embed(["a"], "wrong")),
)
