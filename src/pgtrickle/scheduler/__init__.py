"""The service: what is due, in which order, together with what, and what to do when it fails."""
