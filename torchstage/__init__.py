"""torchstage: a drop-in for torch's DataLoader that loads with threads instead of worker processes."""

from torchstage.loader import StageLoader

__all__ = ["StageLoader"]
__version__ = "0.1.0"
