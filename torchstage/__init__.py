"""torchstage: a drop-in for torch's DataLoader that loads with threads instead of worker processes."""

from torchstage.loader import StageLoader
from torchstage.rng import sample_rng

__all__ = ["StageLoader", "sample_rng"]
__version__ = "0.1.0"
