"""ragas' embeddings by OpenAI's client."""

from asking import KEY, LONG, MODEL, TEXTS, URL, failure, tell
from openai import OpenAI
from ragas.embeddings import OpenAIEmbeddings


def embeddings(key: str) -> OpenAIEmbeddings:
    return OpenAIEmbeddings(client=OpenAI(base_url=f"{URL}/v1", api_key=key), model=MODEL)


client = embeddings(KEY)
tell(
    vectors=client.embed_texts(TEXTS),
    others=[[client.embed_text(text) for text in TEXTS]],
    error=failure(lambda: client.embed_text(LONG)),
    refused=failure(lambda: embeddings("wrong").embed_text("a")),
)
