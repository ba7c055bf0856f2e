"""Routes in Infinity's formats; its `/rerank` is in `service.api.shared_paths`."""

from service.api.infinity import embeddings, models

ROUTERS = (embeddings.router, models.router)
