"""`GET`, `PUT` and `DELETE /models/{name}`: state, load, swap and unload of models, and aliases."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from typing import Self

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.responses import JSONResponse

from service.api.wire.media import MODEL_PARAMETER
from service.api.wire.replies import PROBLEMS, replies
from service.api.wire.route import ApiExchange, admin_errors
from service.api.wire.schemas import documented_body, named
from service.artifacts.repository import VERSION_MARK, Target
from service.errors import UnknownModel, Unprocessable
from service.models.control import FAILED, ModelControl

MOST_CHARACTERS = 512
"""Maximum length of the name of an alias or its model."""

router = APIRouter(tags=["models"])


class ModelUpdate(BaseModel):
    """Request body of `PUT /models/{name}`."""

    model_config = ConfigDict(extra="forbid")

    version: str | None = Field(
        None, min_length=1, max_length=64, description="Version to load; the newest by default."
    )
    current: bool = Field(
        True, description="Whether requests for the bare name get it; otherwise NAME@VERSION alone."
    )
    target: str | None = Field(
        None,
        max_length=MOST_CHARACTERS,
        description="Makes the name an alias of this loaded model, NAME or NAME@VERSION, in place "
        "of a load.",
    )

    @model_validator(mode="after")
    def _an_alias_loads_nothing(self) -> Self:
        if self.target is not None and self.model_fields_set != {"target"}:
            raise ValueError("`target` makes an alias, which the other fields do not apply to")
        return self


_VERSION = {
    "name": str,
    "version": str,
    "state": str,
    "reason?": str,
    "fingerprint?": str,
    "requests": int,
    "memory_bytes?": int,
    "pinned": bool,
}
"""Schema of the state of a version; see `service.models.control`."""
REPLY = named("ModelReply", {"name": str, "versions": [_VERSION], "target?": str, "loaded?": dict})
"""Schema of the state of a model or an alias."""
_RESPONSES = admin_errors(PROBLEMS)


@router.get(f"/models/{MODEL_PARAMETER}", responses=replies(REPLY, {404: PROBLEMS[404]}))
async def state(exchange: ApiExchange, model: str) -> JSONResponse:
    """Return the state of each version of a model, or the target of an alias.

    Only an admin key gets the reason of a failed load, which may show the service's folders.
    """
    return JSONResponse(await _state(exchange, model))


async def _state(exchange: ApiExchange, model: str) -> dict[str, object]:
    control = exchange.service.control
    states = control.versions(await control.refresh(), model)
    target = control.models.aliases.get(model)
    if not states and target is None:
        raise UnknownModel("there is no such model: POST /v2/repository/index lists all")
    found = [asdict(one) for one in states]
    for one in found:
        if one["reason"] and not exchange.is_admin():
            one["reason"] = FAILED
    named_target = str(target) if target else None
    return {"name": model, "versions": found, "target": named_target, "loaded": None}


def _without_null(content: object) -> object:
    if isinstance(content, list):
        return [_without_null(item) for item in content]
    if not isinstance(content, dict):
        return content
    return {name: _without_null(value) for name, value in content.items() if value is not None}


@router.put(
    f"/models/{MODEL_PARAMETER}",
    responses=replies(REPLY, _RESPONSES),
    openapi_extra=documented_body(ModelUpdate),
)
async def load(exchange: ApiExchange, model: str) -> JSONResponse:
    """Load a version and give it to new requests, or set an alias; an admin key is needed.

    The version that served before finishes its requests, and is then released.
    """
    update = await exchange.read_admin(ModelUpdate)
    control = exchange.service.control
    if update.target is not None:
        target = Target.parse(update.target)
        set_alias(control, model, target, {one.name for one in await control.refresh()})
        return JSONResponse(_without_null(await _state(exchange, model)))
    loaded = await control.load(Target(model, update.version), current=update.current)
    about = {
        "version": loaded.model.version,
        "seconds": round(loaded.seconds, 3),
        "replaced": loaded.replaced,
    }
    return JSONResponse(_without_null(await _state(exchange, model) | {"loaded": about}))


@router.delete(f"/models/{MODEL_PARAMETER}", responses=_RESPONSES)
async def unload(exchange: ApiExchange, model: str, version: str | None = None) -> JSONResponse:
    """Unload a model or one version of it, or remove an alias; an admin key is needed."""
    exchange.require_admin()
    control = exchange.service.control
    if model in control.models.aliases and version is None:
        control.alias(model, None)
        return JSONResponse({"name": model, "removed": "alias"})
    unloaded = control.unload(Target(model, version))
    return JSONResponse({"name": model, "unloaded": [one.version for one in unloaded]})


def set_alias(control: ModelControl, alias: str, target: Target, names: Collection[str]) -> None:
    """Set the target of an alias, if neither is refused."""
    models = control.models
    if (
        not alias
        or len(alias) > MOST_CHARACTERS
        or not alias.isprintable()
        or VERSION_MARK in alias
    ):
        raise Unprocessable(
            f"an alias needs 1 to {MOST_CHARACTERS} printable characters without {VERSION_MARK}, "
            "which separates a name from its version"
        )
    if models.versions(alias) or alias in names:
        raise Unprocessable(f"{alias} is the name of a model: choose another alias")
    if target.name in models.aliases:
        raise Unprocessable(f"target: {target.name} is an alias: name its model instead")
    if models.find(target) is None:
        raise Unprocessable(f"target: {target} is not loaded: load it first")
    control.alias(alias, target)
