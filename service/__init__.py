"""Serves an artifact over HTTP, without PyTorch; docs/architecture.md has the rooms."""

from model import vendor_telemetry

vendor_telemetry.switch_off()
