"""Layers between a connection and the routes: connection, host, key, body, time and metrics."""
