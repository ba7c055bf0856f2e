"""The routes of every dialect: schema, call, form of the reply, form of errors."""
