from model import vendor_telemetry

vendor_telemetry.switch_off()
