"""Requests with and without an API key, from the service's own pages and from others."""

from __future__ import annotations

import base64

from trials.recording.requests import POOLED, Request, plain, post


def keys(key: str) -> list[Request]:
    """Return requests for a service with this key, and with https://example.org as CORS origin."""
    basic = base64.b64encode(f"user:{key}".encode()).decode()
    given = {
        "none": {},
        "bearer": {"authorization": f"Bearer {key}"},
        "bearer in lower case": {"authorization": f"bearer {key}"},
        "bearer after spaces": {"authorization": f"Bearer   {key}"},
        "basic": {"authorization": f"Basic {basic}"},
        "another": {"authorization": f"Bearer {key}x"},
        "its beginning": {"authorization": f"Bearer {key[:-1]}"},
        "no scheme": {"authorization": key},
        "another scheme": {"authorization": f"Digest {key}"},
        "empty": {"authorization": ""},
        "no base64": {"authorization": "Basic ???"},
        "too long": {"authorization": f"Bearer {key}" + "x" * 5000},
        "x-api-key": {"x-api-key": key},
        "twice": {"authorization": f"Bearer {key}\r\nauthorization: Bearer {key}"},
    }
    paths: tuple[str, ...] = ("/info", "/health", "/health/live", "/health/ready", "/metrics")
    paths += ("/", "/openapi.json", "/none", "/docs", "/dashboard/main.js")
    requests = []
    for name, sent in given.items():
        requests.append(Request("keys", f"GET /info, key {name}", plain("GET", "/info", sent)))
        body = {"inputs": "Hello", **POOLED}
        requests.append(Request("keys", f"/encode, key {name}", post("/encode", body, sent)))
    requests += [Request("keys", f"GET {path}, no key", plain("GET", path)) for path in paths]
    large = plain("POST", "/encode", {"content-length": "99999999"})
    requests.append(Request("keys", "too large a body, no key", large))
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "accept"}
    for origin in ("https://example.org", "https://example.com"):
        before = plain("OPTIONS", "/encode", {"origin": origin, **asks})
        requests.append(Request("keys", f"preflight of {origin}", before))
        sent = {"origin": origin, **given["bearer"]}
        content = post("/encode", {"inputs": "Hello", **POOLED}, sent)
        requests.append(Request("keys", f"/encode from {origin}", content))
        refused = plain("GET", "/info", {"origin": origin})
        requests.append(Request("keys", f"GET /info from {origin}, no key", refused))
    return requests
