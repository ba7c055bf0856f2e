"""Paths that probes and scrapers ask every few seconds."""

from __future__ import annotations

PROBE_PATHS = {
    "/health",
    "/health/live",
    "/health/ready",
    "/v2/health/live",
    "/v2/health/ready",
}
"""They need no key."""
METRICS_PATH = "/metrics"
