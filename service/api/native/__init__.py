"""Native dialect of Headscope: /encode, /attention and its scores, /explain, /align and /verify."""

from service.api.native import align, attention, encode, explain, verify

ROUTERS = (
    encode.router,
    *attention.ROUTERS,
    explain.router,
    align.router,
    verify.router,
)
