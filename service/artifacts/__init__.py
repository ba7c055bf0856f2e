"""Artifacts to serve: opened, or exported into the cache, and the memory that they need."""
