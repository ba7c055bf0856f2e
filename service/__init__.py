"""Serves an artifact over HTTP, without PyTorch; docs/architecture.md has the rooms."""
