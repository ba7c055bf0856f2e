"""Native dialect: /encode, /attention and its scores, /explain, /rank and /verify."""

from service.api.native import attention, encode, explain, models, rank, verify

ROUTERS = (
    encode.router,
    *attention.ROUTERS,
    explain.router,
    rank.router,
    verify.router,
    models.router,
)
