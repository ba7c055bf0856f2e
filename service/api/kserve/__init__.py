"""The Open Inference Protocol (KServe v2): health, metadata, and texts in, tensors out."""

from service.api.kserve import health, infer, models, repository

ROUTERS = (health.router, repository.router, infer.router, models.router)
