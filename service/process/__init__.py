"""uvicorn around the application: one process, or a supervisor and its workers."""
