"""Stream tables that are refreshed in one transaction: all of them, of one snapshot, or none."""
