"""Headscope's own dialect: /encode, /attention, /explain and /verify."""

from service.api.native import attention, encode, explain, verify

ROUTERS = (encode.router, attention.router, explain.router, verify.router)
