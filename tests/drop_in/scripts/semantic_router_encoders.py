"""semantic-router's encoders: litellm's, and Cohere's, which reads CO_API_URL."""

import os

from asking import KEY, LONG, MODEL, TEXTS, URL, failure, tell
from semantic_router.encoders import CohereEncoder
from semantic_router.encoders.litellm import LiteLLMEncoder

os.environ["OPENAI_BASE_URL"] = f"{URL}/v1"


def encode(texts: list[str], key: str = KEY) -> list[list[float]]:
    return LiteLLMEncoder(name=f"openai/{MODEL}", api_key=key)(texts)


tell(
    vectors=encode(TEXTS),
    others=[CohereEncoder(name=MODEL, cohere_api_key=KEY)(TEXTS)],
    error=failure(lambda: encode([LONG])),
    refused=failure(lambda: encode(["a"], "wrong")),
)
