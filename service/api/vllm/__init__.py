"""Routes in vLLM's formats: /score, /v1/score and /pooling."""

from service.api.vllm import pooling, score

ROUTERS = (score.router, pooling.router)
