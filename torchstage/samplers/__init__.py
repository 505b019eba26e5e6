"""Samplers: which samples, in which order. ``docs/elastic.md`` explains them.

Guarantees: they know no loader, and work with torch's DataLoader too.
"""

from torchstage.samplers.elastic import ElasticSampler

__all__ = ["ElasticSampler"]
