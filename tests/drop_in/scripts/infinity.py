"""infinity-client: embeddings of texts and pictures, and ranking."""

from asking import KEY, LONG, MODEL, PICTURES, QUERY, RANKER, TEXTS, URL, URLS, failure, tell
from infinity_client import AuthenticatedClient
from infinity_client.api.default import embeddings, rerank
from infinity_client.models import OpenAIEmbeddingInputImage, OpenAIEmbeddingInputText, RerankInput


def embed(texts: list[str], key: str = KEY) -> list[list[float]]:
    body = OpenAIEmbeddingInputText(input_=texts, model=MODEL)
    with AuthenticatedClient(URL, key, raise_on_unexpected_status=True) as client:
        return [one.embedding for one in embeddings.sync(client=client, body=body).data]


with AuthenticatedClient(URL, KEY, raise_on_unexpected_status=True) as client:
    images = embeddings.sync(
        client=client, body=OpenAIEmbeddingInputImage(input_=URLS, model=PICTURES)
    )
with AuthenticatedClient(URL, KEY, raise_on_unexpected_status=True) as client:
    body = RerankInput(query=QUERY, documents=TEXTS, model=RANKER)
    ranked = rerank.sync(client=client, body=body)
scores = {one.index: one.relevance_score for one in ranked.results}
tell(
    vectors=embed(TEXTS),
    scores=[[scores[index] for index in range(len(TEXTS))]],
    pictures=[[one.embedding for one in images.data]],
    error=failure(lambda: embed([LONG])),
    refused=failure(lambda: embed(["a"], "wrong")),
)
