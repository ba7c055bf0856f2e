"""Server processes: a single process, or a supervisor and its workers, each running uvicorn."""
