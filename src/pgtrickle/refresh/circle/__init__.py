"""Stream tables that read each other in a circle: refreshed together, in rounds, until none gains a row."""
