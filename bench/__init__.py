"""Measures what admission costs, on real processes, side by side in one run. `python -m bench --help`."""
