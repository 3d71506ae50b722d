"""The pages of `docs/reference`, written from the source: `python -m tools.reference` (`make reference`)."""
