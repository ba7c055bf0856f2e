"""The contract between scheduler and engines, and the engines."""
