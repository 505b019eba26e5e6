"""Frameworks: what rebuilds our loaders, and what must be left of them afterwards."""
