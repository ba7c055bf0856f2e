"""Admission, one queue a lane in fair order, one dispatch of batches."""
