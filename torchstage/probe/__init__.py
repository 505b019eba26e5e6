"""Probe: ``python -m torchstage probe``: the user's own dataset with one thread, more threads and processes."""
