"""What a request meets before its route: connection, key, body, time, count."""
