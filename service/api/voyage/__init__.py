"""Voyage's request formats on paths shared with other dialects."""
