"""Routes in OpenAI's forms: /v1/models."""

from service.api.openai import models

ROUTERS = (models.router,)
