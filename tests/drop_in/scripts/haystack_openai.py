"""haystack's embedders of texts and documents."""

from asking import KEY, LONG, MODEL, TEXTS, URL, failure, tell
from haystack import Document
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.utils import Secret


def common(key: str) -> dict:
    return {"api_base_url": f"{URL}/v1", "api_key": Secret.from_token(key), "model": MODEL}


def embed(text: str, key: str = KEY) -> list[float]:
    embedder = OpenAITextEmbedder(**common(key))
    return embedder.run(text)["embedding"]


documents = OpenAIDocumentEmbedder(progress_bar=False, **common(KEY))
found = documents.run([Document(content=text) for text in TEXTS])["documents"]
tell(
    vectors=[one.embedding for one in found],
    others=[[embed(text) for text in TEXTS]],
    error=failure(lambda: embed(LONG)),
    refused=failure(lambda: embed("a", "wrong")),
)
