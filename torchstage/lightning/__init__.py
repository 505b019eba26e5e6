"""Lightning: datasets, or any LightningDataModule, in; a DataModule whose loaders are StageLoaders, out.

Guarantees: importing torchstage does not import lightning; only this package does. ``docs/lightning.md`` explains it.
"""

try:
    import lightning.pytorch  # noqa: F401  # pyright: ignore[reportUnusedImport]  # to say what is missing
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "lightning":
        raise
    raise ImportError("torchstage.lightning needs lightning: pip install 'torchstage[lightning]'.") from error

from torchstage.lightning.datamodule import StageDataModule
from torchstage.lightning.monitor import StageStatsMonitor

__all__ = ["StageDataModule", "StageStatsMonitor"]
