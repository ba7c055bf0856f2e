"""Native dialect of Headscope: /encode, /attention and its scores, /explain, /align and /verify."""

from service.api.native import align, attention, encode, explain, head_scores, verify

ROUTERS = (
    encode.router,
    attention.router,
    head_scores.router,
    explain.router,
    align.router,
    verify.router,
)
