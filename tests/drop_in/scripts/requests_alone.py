"""requests, as users write it: three dialects without their own clients."""

import requests
from asking import KEY, LONG, MODEL, TEXTS, URL, failure, tell

session = requests.Session()
session.headers["Authorization"] = f"Bearer {KEY}"


def post(route: str, body: dict, headers: dict | None = None) -> object:
    reply = session.post(URL + route, json=body, headers=headers)
    if not reply.ok:
        raise RuntimeError(reply.text)
    return reply.json()


def tensor(texts: list[str]) -> dict:
    return {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}


answer = post("/v1/embeddings", {"model": MODEL, "input": TEXTS})
infer = post(f"/v2/models/{MODEL.replace('/', '%2F')}/infer", {
    "inputs": [tensor(TEXTS)],
    "parameters": {"normalize": True},
})  # fmt: skip
pooled = infer["outputs"][0]
width = pooled["shape"][1]
tell(
    vectors=post("/embed", {"inputs": TEXTS}),
    others=[
        [one["embedding"] for one in answer["data"]],
        [pooled["data"][at : at + width] for at in range(0, len(pooled["data"]), width)],
    ],
    error=failure(lambda: post(f"/v2/models/{MODEL}/infer", {"inputs": [tensor([LONG])]})),
    refused=failure(lambda: post("/v2/models/none/infer", {}, {"Authorization": "Bearer no"})),
)
