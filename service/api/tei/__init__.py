"""Routes in text-embeddings-inference's forms: /predict, /rerank and /embed_sparse."""

from service.api.tei import embed_sparse, predict, rerank

ROUTERS = (predict.router, rerank.router, embed_sparse.router)
