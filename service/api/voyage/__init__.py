"""Voyage's dialect, where its clients share a path with others."""
