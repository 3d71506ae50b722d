"""What PostgreSQL says of a query: names, types, sources, functions. The only room of `query/` that asks a server."""
