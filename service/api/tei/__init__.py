"""Routes in the formats of text-embeddings-inference, and the vocabulary of sparse vectors.

`/rerank` is in `service.api.shared_paths`.
"""

from service.api.tei import embed, embed_sparse, predict, rerank, root, tokenize, vocabulary

ROUTERS = (
    embed.router,
    embed_sparse.router,
    rerank.router,
    predict.router,
    tokenize.router,
    root.router,
    vocabulary.router,
)
