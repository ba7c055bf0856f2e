"""Routes in text-embeddings-inference's forms, and the vocabulary of its sparse vectors."""

from service.api.tei import embed_sparse, predict, rerank, vocabulary

ROUTERS = (predict.router, rerank.router, embed_sparse.router, vocabulary.router)
