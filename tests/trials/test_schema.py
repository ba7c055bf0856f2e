"""Schemathesis finds a service that differs from its document."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict
from starlette.responses import JSONResponse

from trials.schema import fuzz, operations


class Body(BaseModel):
    model_config = ConfigDict(strict=True)

    number: int


class Answer(BaseModel):
    number: int


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    app = FastAPI()

    no_json = {"description": "No JSON"}

    @app.post("/right", response_model=Answer, responses={400: no_json})
    def right(body: Body) -> Answer:
        return Answer(number=body.number)

    @app.post("/lying", response_model=Answer)
    def lying(body: Body) -> JSONResponse:
        return JSONResponse({"number": f"it is {body.number}"})

    too_large = {"description": "Too large"}

    @app.post("/full", response_model=Answer, responses={400: no_json, 413: too_large})
    def full(_: dict[str, object]) -> JSONResponse:
        return JSONResponse({}, 413)

    @app.post("/lax", response_model=Answer)
    def lax(_: dict[str, object]) -> Answer:
        return Answer(number=1)

    document = app.openapi()
    reference = document["paths"]["/right"]["post"]["requestBody"]
    for path in ("/full", "/lax"):
        document["paths"][path]["post"]["requestBody"] = reference
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/right", ""),
        ("/full", ""),
        ("/lying", "is not of type"),
        ("/lax", "200: Schema-violating request accepted"),
    ],
)
def test_what_is_found(url: str, path: str, says: str) -> None:
    found = fuzz(url, path, "POST", 40)
    assert found.cases >= 40
    assert bool(found.failures) == bool(says)
    assert says in " ".join(found.failures)


def test_operations_with_a_body_come_first() -> None:
    document = {"paths": {"/a": {"get": {}}, "/b": {"post": {"requestBody": {}}}}}
    assert operations(document) == [("/b", "POST", True), ("/a", "GET", False)]
