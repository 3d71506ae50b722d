"""Capture of changes: triggers that fill one buffer a source, and the windows read from it."""
