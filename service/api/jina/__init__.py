"""Routes in the formats of Jina and of version 1 of Cohere's API: /v1/rerank."""

from service.api.jina import rerank

ROUTERS = (rerank.router,)
