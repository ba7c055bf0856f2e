"""What all dialects are written in: strict JSON, safetensors, problems, a route's deadline."""
