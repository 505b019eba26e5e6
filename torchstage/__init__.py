"""torchstage: a drop-in for torch's DataLoader that loads with threads instead of worker processes."""

from typing import TYPE_CHECKING, Any

from torchstage.bad import TooManyBadSamples
from torchstage.engine.deadlines import StageTimeout
from torchstage.engine.outcome import SkipSample
from torchstage.loader import StageLoader
from torchstage.rng import sample_rng
from torchstage.safety import Difference, Report, check_thread_safety
from torchstage.split import Split, split
from torchstage.stage import SampleTrace, Stage, StageTrace
from torchstage.staged import StagedDataset
from torchstage.stats import LoaderStats, StageStats
from torchstage.tolerance import BadSample

if TYPE_CHECKING:
    from torchstage.comparison.compare import compare
    from torchstage.comparison.report import Comparison

__all__ = [
    "BadSample",
    "Comparison",
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
    "compare",
    "sample_rng",
    "split",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """What a training never needs is imported when it is asked for."""
    if name == "compare":
        from torchstage.comparison.compare import compare

        return compare
    if name == "Comparison":
        from torchstage.comparison.report import Comparison

        return Comparison
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
