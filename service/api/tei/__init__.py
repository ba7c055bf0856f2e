"""Routes in the formats of text-embeddings-inference, and the vocabulary of sparse vectors."""

from service.api.tei import scores, vectors

ROUTERS = (vectors.router, vectors.queries, scores.router)
