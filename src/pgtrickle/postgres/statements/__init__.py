"""What a refresh does to state and result, as statements: pure functions of layouts and names. `apply/run.py` runs
them."""
