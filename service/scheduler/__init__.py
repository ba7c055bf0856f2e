"""Scheduling of requests: admission, lanes with fair queues, and dispatch of batches."""
