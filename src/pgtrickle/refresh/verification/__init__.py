"""Whether a stream table equals its query: compared with what PostgreSQL itself answers."""
