"""cohere's client, version 1: embeddings by type and as one list, and ranking."""

import cohere
from asking import KEY, LONG, MODEL, QUERY, RANKER, TEXTS, URL, failure, tell

client = cohere.Client(api_key=KEY, base_url=URL)
stranger = cohere.Client(api_key="wrong", base_url=URL)


def embed(texts: list[str], client: cohere.Client = client, **options: str) -> list[list[float]]:
    return client.embed(model=MODEL, texts=texts, **options).embeddings


by_type = client.embed(model=MODEL, texts=TEXTS, embedding_types=["float"]).embeddings.float_
ranked = client.rerank(model=RANKER, query=QUERY, documents=TEXTS)
scores = {item.index: item.relevance_score for item in ranked.results}
tell(
    vectors=embed(TEXTS),
    others=[by_type, embed(TEXTS, input_type="search_document")],
    scores=[[scores[index] for index in range(len(TEXTS))]],
    error=failure(lambda: embed([LONG], truncate="NONE")),
    refused=failure(lambda: embed(["a"], stranger)),
)
