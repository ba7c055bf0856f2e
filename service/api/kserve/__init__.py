"""The Open Inference Protocol (KServe v2): health, metadata, and texts in, tensors out."""

from service.api.kserve import infer, models, repository

ROUTERS = (repository.router, infer.router, models.router)
