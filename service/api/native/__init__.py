"""Headscope's own dialect: /encode, /attention and /verify."""

from service.api.native import attention, encode, verify

ROUTERS = (encode.router, attention.router, verify.router)
