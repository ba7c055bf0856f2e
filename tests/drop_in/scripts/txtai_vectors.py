"""txtai's embeddings by litellm, searched in an index of its own."""

from asking import KEY, LONG, MODEL, TEXTS, URL, failure, tell
from txtai import Embeddings


def embeddings(key: str) -> Embeddings:
    service = {"api_base": f"{URL}/v1", "api_key": key, "num_retries": 0}
    return Embeddings(path=f"openai/{MODEL}", method="litellm", vectors=service, content=False)


client = embeddings(KEY)
client.index(TEXTS)
tell(
    vectors=client.batchtransform(TEXTS),
    nearest=[client.search(text, 1)[0][0] for text in TEXTS],
    error=failure(lambda: client.transform(LONG)),
    refused=failure(lambda: embeddings("wrong").transform("a")),
)
