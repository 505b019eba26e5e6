"""torchstage: a drop-in for torch's DataLoader that loads with threads instead of worker processes."""

from torchstage.bad import TooManyBadSamples
from torchstage.engine.deadlines import StageTimeout
from torchstage.engine.ticket import SkipSample
from torchstage.loader import StageLoader
from torchstage.rng import sample_rng
from torchstage.safety import Difference, Report, check_thread_safety
from torchstage.split import Split, split
from torchstage.stage import SampleTrace, Stage, StageTrace
from torchstage.staged import StagedDataset
from torchstage.stats import LoaderStats, StageStats
from torchstage.tolerance import BadSample

__all__ = [
    "BadSample",
    "Difference",
    "LoaderStats",
    "Report",
    "SampleTrace",
    "SkipSample",
    "Split",
    "Stage",
    "StageLoader",
    "StageStats",
    "StageTimeout",
    "StageTrace",
    "StagedDataset",
    "TooManyBadSamples",
    "check_thread_safety",
    "sample_rng",
    "split",
]
__version__ = "0.1.0"
