"""Routes in OpenAI's formats: /v1/embeddings and /v1/models."""

from service.api.openai import embeddings, models

ROUTERS = (embeddings.router, models.router)
