"""Routes in text-embeddings-inference's forms, and the vocabulary of its sparse vectors.

Its `/rerank` is in `service.api.shared_paths`.
"""

from service.api.tei import (
    embed,
    embed_sparse,
    predict,
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
    tokenize.router,
    root.router,
    vocabulary.router,
)
