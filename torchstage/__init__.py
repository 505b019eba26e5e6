"""torchstage: a drop-in for torch's DataLoader that loads with threads instead of worker processes."""

from torchstage.loader import StageLoader
from torchstage.rng import sample_rng
from torchstage.safety import Difference, Report, check_thread_safety
from torchstage.split import Split, split
from torchstage.stage import SampleTrace, Stage, StageTrace
from torchstage.staged import StagedDataset

__all__ = [
    "Difference",
    "Report",
    "SampleTrace",
    "Split",
    "Stage",
    "StageLoader",
    "StageTrace",
    "StagedDataset",
    "check_thread_safety",
    "sample_rng",
    "split",
]
__version__ = "0.1.0"
