"""Executors: what runs stages outside the threads of a loader, and how values come there and back."""
