"""DataModule: datasets in, Lightning's DataModule with StageLoaders out, which goes on where a checkpoint was saved.

Guarantees: a run that is cut anywhere and resumed trains with the batches that it would have had; after ``fit`` and the
other runs, and after an exception in one, no thread is left.
"""

from collections.abc import Callable, Mapping, Sequence
from multiprocessing.context import BaseContext
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.core.hooks import DataHooks
from torch.utils.data import Dataset, IterableDataset, Sampler

from torchstage.arguments import LOADER_ARGUMENTS
from torchstage.isolation import Isolation
from torchstage.lightning.fed import Feed, fed_class
from torchstage.lightning.leaves import leaves
from torchstage.lightning.orders import elastic
from torchstage.lightning.training import Training
from torchstage.lightning.wrapped import LOADERS, Wrapping
from torchstage.loader import StageLoader, WorkerMethod
from torchstage.stage import Stage
from torchstage.tolerance import OnError

if TYPE_CHECKING:
    OneDataset = Dataset[Any]
    AnySampler = Sampler[Any]
    BatchesSampler = Sampler[list[Any]]
else:  # jsonargparse, which LightningCLI asks, finds no arguments of the subclasses of Dataset[Any]
    OneDataset, AnySampler, BatchesSampler = Dataset, Sampler, Sampler
Datasets = OneDataset | Sequence[OneDataset] | Mapping[str, OneDataset]

OF_TRAINING = (  # arguments that say an order; and who has one epoch right after another
    *("shuffle", "sampler", "batch_sampler", "drop_last", "generator", "prefetch_epochs"),
)


class StageDataModule(LightningDataModule):
    """A LightningDataModule of datasets, whose loaders are StageLoaders.

    ``train_dataset``, ``val_dataset``, ``test_dataset`` and ``predict_dataset`` may each be a dataset, or a list, a
    tuple or a mapping of datasets: then so are its loaders; None: there is no such loader. The other arguments are
    StageLoader's, for all loaders; but ``sampler``, ``batch_sampler``, ``drop_last`` and ``generator`` are the training
    loaders' alone.

    Args:
        shuffle: of the training loaders; None: shuffled. The order of a map-style dataset is that of an
            ``ElasticSampler`` with ``seed`` (None: that of ``seed_everything``, else 0), padded so that all ranks have
            equally many steps, or cut with ``drop_last``.

    Arguments are kept as attributes of the same names, read when loaders are made. Hooks may be overridden.
    ``state_dict`` is saved in Lightning's checkpoints; a run that is resumed from one goes on with the next batch.
    """

    def __init__(
        self,
        train_dataset: Datasets | None = None,
        val_dataset: Datasets | None = None,
        test_dataset: Datasets | None = None,
        predict_dataset: Datasets | None = None,
        *,
        batch_size: int | None = 1,
        num_workers: int = 0,
        shuffle: bool | None = None,
        sampler: AnySampler | None = None,
        batch_sampler: BatchesSampler | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: torch.Generator | None = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        stages: Sequence[Stage] = (),
        worker_method: WorkerMethod = "auto",
        lanes: int | None = None,
        device: torch.device | str | int | None = None,
        prefetch_bytes: int | None = None,
        isolation: Isolation = "auto",
        seed: int | None = None,
        sample_rng: bool = True,
        prefetch_epochs: bool = False,
        snapshot_every_n_steps: int = 1,
        on_error: OnError = "raise",
        max_bad_samples: int | float | None = None,
    ) -> None:
        super().__init__()
        self.train_dataset = train_dataset
        self.val_dataset = val_dataset
        self.test_dataset = test_dataset
        self.predict_dataset = predict_dataset
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.shuffle = shuffle
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.collate_fn = collate_fn
        self.pin_memory = pin_memory
        self.drop_last = drop_last
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.generator = generator
        self.prefetch_factor = prefetch_factor
        self.persistent_workers = persistent_workers
        self.pin_memory_device = pin_memory_device
        self.in_order = in_order
        self.stages = stages
        self.worker_method: WorkerMethod = worker_method
        self.lanes = lanes
        self.device = device
        self.prefetch_bytes = prefetch_bytes
        self.isolation: Isolation = isolation
        self.seed = seed
        self.sample_rng = sample_rng
        self.prefetch_epochs = prefetch_epochs
        self.snapshot_every_n_steps = snapshot_every_n_steps
        self.on_error: OnError = on_error
        self.max_bad_samples = max_bad_samples
        self._training = Training()
        self._set_hooks()

    @classmethod
    def from_datasets(
        cls,
        train_dataset: Any = None,
        val_dataset: Any = None,
        test_dataset: Any = None,
        predict_dataset: Any = None,
        batch_size: int = 1,
        num_workers: int = 0,
        **datamodule_kwargs: Any,
    ) -> "StageDataModule":
        """As that of every LightningDataModule; the constructor does the same."""
        arguments: dict[str, Any] = {"batch_size": batch_size, "num_workers": num_workers, **datamodule_kwargs}
        return cls(train_dataset, val_dataset, test_dataset, predict_dataset, **arguments)

    @classmethod
    def wrap(cls, datamodule: LightningDataModule, **loader_arguments: Any) -> "StageDataModule":
        """A DataModule with the hooks of another one, whose DataLoaders become StageLoaders: with their own arguments,
        and ``loader_arguments`` in place of those of the same name.

        Args:
            datamodule: any LightningDataModule.
            loader_arguments: StageLoader's, by name.
        """
        return WrappedDataModule(datamodule, loader_arguments)

    def _set_hooks(self) -> None:
        """Lightning looks for loaders by whether a hook was overridden. Who overrides ``setup`` may give data later."""
        mine = StageDataModule
        if type(self).setup is not mine.setup or type(self).prepare_data is not mine.prepare_data:
            return
        for name in LOADERS:
            hook = f"{name}_dataloader"
            if getattr(self, f"{name}_dataset") is None and getattr(type(self), hook) is getattr(mine, hook):
                setattr(self, hook, MethodType(getattr(DataHooks, hook), self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set_hooks()  # a method of a class that is set on an object does not survive pickling

    # Loaders ----------------------------------------------------------------------------------------------------

    def train_dataloader(self) -> Any:
        if self.train_dataset is None:
            raise ValueError("StageDataModule: there is no train_dataset. Give one, or set it in setup().")
        if isinstance(self.train_dataset, list | tuple | Mapping) and (self.sampler or self.batch_sampler):
            raise ValueError(
                "StageDataModule: a sampler or batch_sampler belongs to one dataset, and train_dataset is a "
                f"{type(self.train_dataset).__name__} of datasets. Override train_dataloader() to give each its own."
            )
        new_feed = self._training.begin(self.trainer)
        return leaves(self.train_dataset, "train_dataset", lambda dataset: self._train_loader(dataset, new_feed()))

    def val_dataloader(self) -> Any:
        return self._evaluation_loaders("val")

    def test_dataloader(self) -> Any:
        return self._evaluation_loaders("test")

    def predict_dataloader(self) -> Any:
        return self._evaluation_loaders("predict")

    def loader_arguments(self) -> dict[str, Any]:
        """StageLoader's arguments, as they are now, but for those that say an order."""
        return {name: getattr(self, name) for name in LOADER_ARGUMENTS if name not in OF_TRAINING}

    def _train_loader(self, dataset: Any, feed: Feed) -> Any:
        arguments = {**self.loader_arguments(), **{name: getattr(self, name) for name in OF_TRAINING}}
        if isinstance(dataset, IterableDataset):
            arguments["shuffle"] = None
        elif self.sampler is None and self.batch_sampler is None:
            shuffle = arguments.pop("shuffle") is not False
            if shuffle or not getattr(self.trainer, "overfit_batches", 0):  # else Lightning asks for torch's own order
                arguments["sampler"] = elastic(dataset, self.seed, self.drop_last, shuffle=shuffle)
        return fed_class(StageLoader)(dataset, feed=feed, **arguments)

    def _evaluation_loaders(self, name: str) -> Any:
        datasets = getattr(self, f"{name}_dataset")
        if datasets is None:
            return []
        arguments, feed = self.loader_arguments(), self._training.evaluation_feed()
        make = fed_class(StageLoader)
        return leaves(datasets, f"{name}_dataset", lambda dataset: make(dataset, feed=feed, **arguments))

    # State and end ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where training is: what each training loader needs to go on behind the batches that were trained with.
        Called on all ranks at once; plain values. Empty where there was no training."""
        return self._training.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on there, with the loaders that are made next, or that are made already and not asked for a batch yet."""
        self._training.load_state_dict(state_dict, self.trainer)

    def teardown(self, stage: str) -> None:
        """End the threads of all loaders."""
        self._training.close()

    def on_exception(self, exception: BaseException) -> None:
        """The same. What training had come to can still be saved."""
        self._training.close()


class WrappedDataModule(Wrapping, StageDataModule):
    """What ``StageDataModule.wrap`` makes."""
