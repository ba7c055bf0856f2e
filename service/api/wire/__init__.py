"""Wire formats that all dialects share: strict JSON, safetensors, problems, a route's deadline."""
