"""Parity: what is written here of DataLoader holds of StageLoader. One body, run on both."""
