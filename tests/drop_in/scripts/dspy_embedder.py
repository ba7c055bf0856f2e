"""dspy's embedder."""

import dspy
from asking import KEY, LONG, MODEL, TEXTS, URL, failure, tell

given = {"api_base": f"{URL}/v1", "caching": False, "num_retries": 0}
embedder = dspy.Embedder(f"openai/{MODEL}", api_key=KEY, **given)
stranger = dspy.Embedder(f"openai/{MODEL}", api_key="wrong", **given)
tell(
    vectors=embedder(TEXTS),
    error=failure(lambda: embedder([LONG])),
    refused=failure(lambda: stranger(["a"])),
)
