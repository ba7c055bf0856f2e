"""Native dialect: /encode, /attention and its scores, /explain, /rank, /align and /verify."""

from service.api.native import align, attention, config, encode, explain, models, rank, verify

ROUTERS = (
    encode.router,
    *attention.ROUTERS,
    explain.router,
    rank.router,
    align.router,
    verify.router,
    models.router,
    config.router,
)
