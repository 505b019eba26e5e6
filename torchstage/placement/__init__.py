"""Placement: threads or processes for each stage, and why."""
