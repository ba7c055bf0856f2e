"""/attention and its sub-routes: one module a route, over one selection of maps."""

from service.api.native.attention import maps, scores

ROUTERS = (maps.router, scores.router)
