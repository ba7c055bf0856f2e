"""huggingface_hub's InferenceClient, which speaks text-embeddings-inference's dialect."""

from asking import KEY, LONG, MODEL, TEXTS, URL, failure, tell
from huggingface_hub import InferenceClient

client = InferenceClient(base_url=URL, api_key=KEY)
stranger = InferenceClient(base_url=URL, api_key="wrong")
tell(
    vectors=client.feature_extraction(TEXTS),
    others=[[client.feature_extraction(text)[0] for text in TEXTS]],
    error=failure(lambda: client.feature_extraction(LONG, truncate=False)),
    refused=failure(lambda: stranger.feature_extraction("a")),
    model=MODEL,
)
