"""Routes in Cohere's formats: /v2/embed, /v1/embed and /v2/rerank."""

from service.api.cohere import embed, rerank

ROUTERS = (embed.router, rerank.router)
