"""Routes in Jina's forms, which are those of Cohere's first version as well: /v1/rerank."""

from service.api.jina import rerank

ROUTERS = (rerank.router,)
