"""The users' data as columns of a table: casts, checks and errors by row."""
