"""Routes in Infinity's forms; its `/rerank` is in `service.api.shared_paths`."""

from service.api.infinity import classify, models

ROUTERS = (classify.router, models.router)
