"""`POST /config/reload`: read the file of settings again, and apply what can change at run time."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from service.api.wire.admin import require_admin
from service.api.wire.problems import PROBLEMS
from service.models.reload import Reload

RESPONSES = {
    403: "The key may not change the settings, or the service has no admin key",
    409: "Another reload is running",
    422: "There is no file, the file is invalid, or a model cannot be started; nothing has changed",
    507: "The models exceed the memory budget; nothing has changed",
}

router = APIRouter(tags=["models"])


class ReloadedModels(BaseModel):
    """Models that a reload has changed, as NAME@VERSION."""

    loaded: list[str]
    replaced: list[str] = Field(description="Models that were started again with other settings.")
    unloaded: list[str]


class ReloadReply(BaseModel):
    """Outcome of a reload; settings have the names of their keys in the file."""

    applied: list[str] = Field(description="Changed settings that are in effect now.")
    restart: list[str] = Field(description="Changed settings that need a restart.")
    unchanged: list[str]
    overridden: list[str] = Field(
        description="Settings over which a flag or a variable takes precedence."
    )
    models: ReloadedModels
    seconds: float


@router.post(
    "/config/reload",
    responses={
        status: {"description": text, "content": PROBLEMS[400]["content"]}
        for status, text in RESPONSES.items()
    },
)
async def reload(request: Request) -> ReloadReply:
    """Read the file of `--config` again, and apply all or nothing; an admin key is needed."""
    require_admin(request)
    run: Reload = request.app.state.reload
    reloaded = await run()
    changes = reloaded.changes
    return ReloadReply(
        applied=changes.applied,
        restart=changes.restart,
        unchanged=changes.unchanged,
        overridden=changes.overridden,
        models=ReloadedModels(**asdict(reloaded.models)),
        seconds=round(reloaded.seconds, 3),
    )
