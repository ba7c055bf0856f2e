"""The Open Inference Protocol (KServe v2): health, metadata, and texts in, tensors out."""

from service.api.kserve import infer, models

ROUTERS = (models.repository, infer.router, models.router)
