"""Routes in vLLM's forms: /score, /v1/score and /pooling."""

from service.api.vllm import pooling, score

ROUTERS = (score.router, pooling.router)
