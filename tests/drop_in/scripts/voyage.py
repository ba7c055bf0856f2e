"""voyageai's client: embeddings and ranking."""

import voyageai
from asking import KEY, LONG, MODEL, QUERY, RANKER, TEXTS, URL, failure, tell

client = voyageai.Client(api_key=KEY, base_url=f"{URL}/v1")
stranger = voyageai.Client(api_key="wrong", base_url=f"{URL}/v1")
ranked = client.rerank(QUERY, TEXTS, model=RANKER)
scores = {item.index: item.relevance_score for item in ranked.results}
tell(
    vectors=client.embed(TEXTS, model=MODEL).embeddings,
    others=[client.embed(TEXTS, model=MODEL, input_type="document").embeddings],
    scores=[[scores[index] for index in range(len(TEXTS))]],
    error=failure(lambda: client.embed([LONG], model=MODEL, truncation=False)),
    refused=failure(lambda: stranger.embed(["a"], model=MODEL)),
)
