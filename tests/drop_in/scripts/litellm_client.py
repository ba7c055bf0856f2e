"""litellm's embeddings and ranking, by the providers for self-hosted services."""

import litellm
from asking import KEY, LONG, MODEL, QUERY, RANKER, TEXTS, URL, failure, tell

EMBEDDERS = {
    "openai": f"{URL}/v1",
    "hosted_vllm": f"{URL}/v1",
    "infinity": URL,
    "jina_ai": f"{URL}/v1",
    "cohere": f"{URL}/v2/embed",
    "huggingface": f"{URL}/embed",
}
INPUT_TYPES = {"cohere": "search_document", "huggingface": "embed"}
"""Kind of text for Cohere; task for Hugging Face, which litellm otherwise requests from the hub."""
RANKERS = {"infinity": URL, "cohere": URL, "jina_ai": URL, "hosted_vllm": f"{URL}/v2/rerank"}


def embed(provider: str, texts: list[str], key: str = KEY) -> list[list[float]]:
    given = {"api_base": EMBEDDERS[provider], "api_key": key, "num_retries": 0}
    if provider in INPUT_TYPES:
        given["input_type"] = INPUT_TYPES[provider]
    answer = litellm.embedding(f"{provider}/{MODEL}", input=texts, **given)
    return [item["embedding"] for item in answer.data]


def rank(provider: str) -> list[float]:
    given = {"api_base": RANKERS[provider], "api_key": KEY, "query": QUERY, "documents": TEXTS}
    answer = litellm.rerank(f"{provider}/{RANKER}", **given)
    scores = {item["index"]: item["relevance_score"] for item in answer.results}
    return [scores[index] for index in range(len(TEXTS))]


tell(
    vectors=embed("openai", TEXTS),
    others=[embed(provider, TEXTS) for provider in EMBEDDERS],
    scores=[rank(provider) for provider in RANKERS],
    error=failure(lambda: embed("openai", [LONG])),
    refused=failure(lambda: embed("openai", ["a"], "wrong")),
)
