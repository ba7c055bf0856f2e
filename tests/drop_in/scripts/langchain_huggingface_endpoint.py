"""langchain-huggingface's endpoint embeddings, whose own check refuses a URL as the model."""

import asyncio

from asking import KEY, LONG, MODEL, TEXTS, URL, failure, tell
from huggingface_hub import AsyncInferenceClient, InferenceClient
from langchain_huggingface import HuggingFaceEndpointEmbeddings


def embeddings(key: str, **options: bool) -> HuggingFaceEndpointEmbeddings:
    made = HuggingFaceEndpointEmbeddings(model=MODEL, model_kwargs=options)
    made.client = InferenceClient(base_url=URL, api_key=key)
    made.async_client = AsyncInferenceClient(base_url=URL, api_key=key)
    return made


client = embeddings(KEY)
tell(
    vectors=client.embed_documents(TEXTS),
    others=[
        asyncio.run(client.aembed_documents(TEXTS)),
        [client.embed_query(text) for text in TEXTS],
    ],
    error=failure(lambda: embeddings(KEY, truncate=False).embed_documents([LONG])),
    refused=failure(lambda: embeddings("wrong").embed_query("a")),
    url=failure(lambda: HuggingFaceEndpointEmbeddings(model=URL)),
)
