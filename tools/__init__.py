"""What the project makes of its own source; not part of the package."""
