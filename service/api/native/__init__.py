"""Native dialect: /encode, /attention and its scores, /explain, /rank and /verify."""

from service.api.native import encode, explain, models, rank, verify
from service.api.native.attention import maps

ROUTERS = (
    encode.router,
    maps.router,
    explain.router,
    rank.router,
    verify.router,
    models.router,
)
