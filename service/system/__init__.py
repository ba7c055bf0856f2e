"""Machine, installation, environment, logging, and process parameters."""
