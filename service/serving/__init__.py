"""The served models, each with its parts, and what they share."""
