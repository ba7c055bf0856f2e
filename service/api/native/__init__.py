"""Headscope's own dialect: /encode, /attention and /verify."""

from fastapi import APIRouter

from service.api.native import attention, encode, verify

router = APIRouter()
for routes in (encode, attention, verify):
    router.include_router(routes.router)
