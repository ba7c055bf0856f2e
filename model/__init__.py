"""The mathematics of encoders, their export to artifacts, and the runtimes that compute those."""

from model import vendor_telemetry

vendor_telemetry.switch_off()
