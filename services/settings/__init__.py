"""One configuration for every process: its schema, where it is read, and what of it seeds Redis."""
