"""infinity-client: embeddings and ranking."""

from asking import KEY, LONG, MODEL, QUERY, RANKER, TEXTS, URL, failure, tell
from infinity_client import AuthenticatedClient
from infinity_client.api.default import embeddings, rerank
from infinity_client.models import OpenAIEmbeddingInputText, RerankInput


def embed(texts: list[str], key: str = KEY) -> list[list[float]]:
    body = OpenAIEmbeddingInputText(input_=texts, model=MODEL)
    with AuthenticatedClient(URL, key, raise_on_unexpected_status=True) as client:
        return [one.embedding for one in embeddings.sync(client=client, body=body).data]


with AuthenticatedClient(URL, KEY, raise_on_unexpected_status=True) as client:
    body = RerankInput(query=QUERY, documents=TEXTS, model=RANKER)
    ranked = rerank.sync(client=client, body=body)
scores = {one.index: one.relevance_score for one in ranked.results}
tell(
    vectors=embed(TEXTS),
    scores=[[scores[index] for index in range(len(TEXTS))]],
    error=failure(lambda: embed([LONG])),
    refused=failure(lambda: embed(["a"], "wrong")),
)
