"""Routes in Cohere's forms: /v2/rerank."""

from service.api.cohere import rerank

ROUTERS = (rerank.router,)
