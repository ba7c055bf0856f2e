"""Artifacts to serve: opened, exported into the cache, or chosen by measurement."""
