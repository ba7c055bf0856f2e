"""Routes in text-embeddings-inference's forms, and the vocabulary of its sparse vectors."""

from service.api.tei import (
    embed,
    embed_sparse,
    predict,
    rerank,
    root,
    similarity,
    tokenize,
    vocabulary,
)

ROUTERS = (
    embed.router,
    embed_sparse.router,
    similarity.router,
    predict.router,
    rerank.router,
    tokenize.router,
    root.router,
    vocabulary.router,
)
