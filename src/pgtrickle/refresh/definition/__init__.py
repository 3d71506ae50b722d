"""Stream tables as things that are made, changed, mended and dropped."""
