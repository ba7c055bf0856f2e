"""Which artifact is served: opened, exported into the cache, or chosen by measurement."""
