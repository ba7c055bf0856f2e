"""Routes in text-embeddings-inference's forms, and the vocabulary of its sparse vectors.

Its `/rerank` is in `service.api.shared_paths`.
"""

from service.api.tei import embed_sparse, predict, vocabulary

ROUTERS = (predict.router, embed_sparse.router, vocabulary.router)
