"""Headscope's own dialect: /encode, /attention, /align and /verify."""

from service.api.native import align, attention, encode, verify

ROUTERS = (encode.router, attention.router, align.router, verify.router)
