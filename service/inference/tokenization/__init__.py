"""Text to token ids and offsets, within limits and in slices under a deadline."""
