"""langchain-openai's embeddings, which by default send the token ids of another vocabulary."""

import os
from pathlib import Path

import litellm
from asking import KEY, LONG, MODEL, TEXTS, URL, failure, tell
from langchain_openai import OpenAIEmbeddings

# tiktoken downloads its vocabularies, and litellm includes one
vocabularies = Path(litellm.__file__).parent / "litellm_core_utils" / "tokenizers"
os.environ["TIKTOKEN_CACHE_DIR"] = str(vocabularies)

common = {"base_url": f"{URL}/v1", "api_key": KEY, "model": MODEL}
client = OpenAIEmbeddings(check_embedding_ctx_length=False, **common)
stranger = OpenAIEmbeddings(check_embedding_ctx_length=False, **{**common, "api_key": "wrong"})
tell(
    vectors=client.embed_documents(TEXTS),
    others=[[client.embed_query(text) for text in TEXTS]],
    error=failure(lambda: client.embed_documents([LONG])),
    refused=failure(lambda: stranger.embed_query("a")),
    token_ids=failure(lambda: OpenAIEmbeddings(**common).embed_documents(TEXTS)),
)
