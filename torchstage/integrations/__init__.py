"""Integrations: what keeps a StageLoader a StageLoader where a framework would make a DataLoader of it.

Guarantees: nothing is imported here; each module imports its own framework.
"""
