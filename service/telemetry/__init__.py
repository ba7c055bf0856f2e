"""Metrics for Prometheus, of one process or of all workers; the access log; traces."""
