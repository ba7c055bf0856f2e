"""cohere's client, version 2: embeddings of texts and pictures, and ranking."""

import cohere
from asking import KEY, LONG, MODEL, PICTURES, QUERY, RANKER, TEXTS, URL, URLS, failure, tell

client = cohere.ClientV2(api_key=KEY, base_url=URL)
stranger = cohere.ClientV2(api_key="wrong", base_url=URL)


def embed(texts: list[str], client: cohere.ClientV2 = client, **more: str) -> list[list[float]]:
    given = {"input_type": "search_document", "embedding_types": ["float"], **more}
    return client.embed(model=MODEL, texts=texts, **given).embeddings.float_


def pictures(**given: object) -> list[list[float]]:
    answer = client.embed(model=PICTURES, embedding_types=["float"], **given)
    return answer.embeddings.float_


parts = [{"type": "image_url", "image_url": {"url": url}} for url in URLS]
ranked = client.rerank(model=RANKER, query=QUERY, documents=TEXTS)
scores = {one.index: one.relevance_score for one in ranked.results}
tell(
    vectors=embed(TEXTS),
    scores=[[scores[index] for index in range(len(TEXTS))]],
    pictures=[
        pictures(input_type="image", images=URLS),
        pictures(input_type="search_document", inputs=[{"content": [part]} for part in parts]),
    ],
    error=failure(lambda: embed([LONG], truncate="NONE")),
    refused=failure(lambda: embed(["a"], stranger)),
)
