"""Operating-system processes: a single server, or a supervisor and its workers."""
