"""Routes in the formats of text-embeddings-inference, and the vocabulary of sparse vectors."""

from service.api.tei import scores, tokens, vectors

ROUTERS = (
    vectors.router,
    vectors.tasks_router,
    scores.router,
    scores.tasks_router,
    tokens.router,
    tokens.tasks_router,
)
