"""Routes of every dialect: request schema, call of the core, format of replies and errors."""
