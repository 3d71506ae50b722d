"""Benchmarks on the real thing: `make bench`. Each prints ratios measured in one run, side by side with its peer."""
