"""/attention and /attention/scores, over one selection of maps."""
