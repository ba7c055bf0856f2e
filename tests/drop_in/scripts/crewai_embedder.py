"""crewai's embedder of OpenAI."""

from asking import KEY, LONG, MODEL, TEXTS, URL, failure, tell
from crewai.rag.embeddings.factory import build_embedder


def embedder(key: str):
    config = {"api_key": key, "api_base": f"{URL}/v1", "model_name": MODEL}
    return build_embedder({"provider": "openai", "config": config})


client = embedder(KEY)
tell(
    vectors=[list(map(float, vector)) for vector in client(TEXTS)],
    error=failure(lambda: client([LONG])),
    refused=failure(lambda: embedder("wrong")(["a"])),
)
