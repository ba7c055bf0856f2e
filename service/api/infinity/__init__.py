"""Routes in Infinity's formats; its `/rerank` is in `service.api.shared_paths`."""

from service.api.infinity import classify, embeddings, models

ROUTERS = (embeddings.router, classify.router, models.router)
