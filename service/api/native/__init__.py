"""Headscope's own dialect: /encode, /attention, /explain, /align and /verify."""

from service.api.native import align, attention, encode, explain, verify

ROUTERS = (encode.router, attention.router, explain.router, align.router, verify.router)
