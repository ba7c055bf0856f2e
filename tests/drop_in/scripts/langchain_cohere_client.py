"""langchain-cohere's embeddings, which speak Cohere's first version, and its reranker."""

from asking import KEY, LONG, MODEL, QUERY, RANKER, TEXTS, URL, failure, tell
from langchain_cohere import CohereEmbeddings, CohereRerank

given = {"model": MODEL, "base_url": URL, "max_retries": 1}
client = CohereEmbeddings(cohere_api_key=KEY, **given)
strict = CohereEmbeddings(cohere_api_key=KEY, truncate="NONE", **given)
stranger = CohereEmbeddings(cohere_api_key="wrong", **given)
reranker = CohereRerank(cohere_api_key=KEY, base_url=URL, model=RANKER, top_n=None)
scores = {item["index"]: item["relevance_score"] for item in reranker.rerank(TEXTS, QUERY)}
tell(
    vectors=client.embed_documents(TEXTS),
    others=[[client.embed_query(text) for text in TEXTS]],
    scores=[[scores[index] for index in range(len(TEXTS))]],
    error=failure(lambda: strict.embed_documents([LONG])),
    refused=failure(lambda: stranger.embed_query("a")),
)
