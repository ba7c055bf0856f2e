"""Paths that probes and scrapers request every few seconds."""

from __future__ import annotations

PROBE_PATHS = {
    "/health",
    "/health/live",
    "/health/ready",
    "/v2/health/live",
    "/v2/health/ready",
}
"""Paths that do not require an API key."""
METRICS_PATH = "/metrics"
