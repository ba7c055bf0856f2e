"""Measurements on this machine: seconds of batches, quality and speed of artifacts."""
