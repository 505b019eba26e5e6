"""torchstage: a drop-in for torch's DataLoader that loads with threads instead of worker processes."""

from torchstage.loader import StageLoader
from torchstage.rng import sample_rng
from torchstage.safety import Difference, Report, check_thread_safety

__all__ = ["Difference", "Report", "StageLoader", "check_thread_safety", "sample_rng"]
__version__ = "0.1.0"
