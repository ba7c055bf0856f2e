"""chromadb's embedding functions: OpenAI's and text-embeddings-inference's."""

from asking import KEY, LONG, MODEL, TEXTS, URL, failure, tell
from chromadb.utils.embedding_functions import HuggingFaceEmbeddingServer, OpenAIEmbeddingFunction

openai = OpenAIEmbeddingFunction(api_key=KEY, api_base=f"{URL}/v1", model_name=MODEL)
stranger = OpenAIEmbeddingFunction(api_key="wrong", api_base=f"{URL}/v1", model_name=MODEL)
tei = HuggingFaceEmbeddingServer(url=f"{URL}/embed", api_key=KEY)
tell(
    vectors=openai(TEXTS),
    others=[tei(TEXTS)],
    error=failure(lambda: openai([LONG])),
    refused=failure(lambda: stranger(["a"])),
)
