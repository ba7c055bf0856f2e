"""Documents ranked by their scores with a query, and explanations of the ranking."""
