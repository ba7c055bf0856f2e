"""Prometheus metrics of one process or of all workers, the access log, and traces."""
