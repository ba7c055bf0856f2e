"""langchain-openai's embeddings, which send token ids unless told otherwise."""

from asking import KEY, LONG, MODEL, TEXTS, URL, failure, tell
from langchain_openai import OpenAIEmbeddings

common = {"base_url": f"{URL}/v1", "api_key": KEY, "model": MODEL}
client = OpenAIEmbeddings(check_embedding_ctx_length=False, **common)
stranger = OpenAIEmbeddings(check_embedding_ctx_length=False, **{**common, "api_key": "wrong"})
tell(
    vectors=client.embed_documents(TEXTS),
    others=[[client.embed_query(text) for text in TEXTS]],
    error=failure(lambda: client.embed_documents([LONG])),
    refused=failure(lambda: stranger.embed_query("a")),
)
