"""Comparison: ``torchstage.compare``: whether two loaders give the same batches, and what each of them costs."""
