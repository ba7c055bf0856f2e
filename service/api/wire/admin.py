"""Routes that change the served models: they need a key of `--admin-keys`."""

from __future__ import annotations

from pydantic import BaseModel

from service.api.wire.bodies import check_media_type, inlined, read_json
from service.api.wire.media import JSON
from service.api.wire.replies import Responses
from service.api.wire.route import ApiExchange, Schema, validated
from service.errors import Forbidden, Unauthorized
from service.http.admission import ADMIN

ADMIN_STATUSES = {
    403: "The key may not change the served models, or the service has no admin key",
    404: "No such model or version",
    409: "Another load or unload of the model is running",
    422: "Wrong schema, or the model cannot be loaded",
    507: "The model exceeds the memory budget",
}
"""Statuses of errors of the routes, for the OpenAPI document."""


def require_admin(exchange: ApiExchange) -> None:
    """Raise unless a request has a key of `--admin-keys`."""
    if exchange.service.settings.admin_keys is None:
        raise Forbidden("models are changed with an admin key: start the service with --admin-keys")
    if not exchange.key:
        raise Unauthorized("an admin key is needed: Authorization: Bearer KEY", prompts=False)
    if not is_admin(exchange):
        raise Forbidden(f"{exchange.key} may not change models: use a key of --admin-keys")


def is_admin(exchange: ApiExchange) -> bool:
    """Return whether a request has a key of `--admin-keys`."""
    return exchange.key.startswith(ADMIN)


async def read_admin(exchange: ApiExchange, schema: type[Schema]) -> Schema:
    """Return the validated JSON body of an admin's request; an empty body is an empty object."""
    require_admin(exchange)
    body = exchange.take_body()
    if not body:
        return validated(schema, {})
    check_media_type(exchange.headers, (JSON, ""))
    return validated(schema, await read_json(body, exchange.reservation))


def documented_body(schema: type[BaseModel]) -> dict[str, object]:
    """Return the OpenAPI document of a JSON body that a route reads itself."""
    return {"requestBody": {"content": {JSON: {"schema": inlined(schema.model_json_schema())}}}}


def admin_errors(responses: Responses, model: type[BaseModel] | None = None) -> Responses:
    """Return the error replies of an admin's route, with the content of the dialect's status 400.

    A `model` of the body replaces that content.
    """
    form = {"model": model} if model else {"content": responses[400]["content"]}
    return {status: {"description": text, **form} for status, text in ADMIN_STATUSES.items()}
