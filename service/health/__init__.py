"""Health of engines: probes, golden texts, live verification, and recovery."""
