"""Wrapped: any LightningDataModule in, one with the same hooks out, whose DataLoaders have become StageLoaders.

Guarantees: each hook is the other DataModule's; a loader keeps its arguments, and its order where Lightning would not
choose another one; what is no DataLoader, or iterates in a way of its own, stays as it is.
"""

from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any, cast

from lightning.pytorch import LightningDataModule
from lightning.pytorch.core.hooks import DataHooks
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils.data import RandomSampler, SequentialSampler

from torchstage.arguments import LOADER_ARGUMENTS, arguments_of, class_for, is_convertible
from torchstage.lightning.fed import Feed, fed_class
from torchstage.lightning.leaves import leaves
from torchstage.lightning.orders import elastic
from torchstage.lightning.training import Training

LOADERS = ("train", "val", "test", "predict")
ORDERS = ("shuffle", "sampler", "batch_sampler")  # what only the DataModule itself can say
HOOKS = (
    "prepare_data",
    "setup",
    "on_before_batch_transfer",
    "transfer_batch_to_device",
    "on_after_batch_transfer",
)


class Wrapping:
    """Over StageDataModule: ``StageDataModule.wrap(datamodule, ...)``. Attributes that it does not have are the
    DataModule's."""

    trainer: Any
    _training: Training

    def __init__(self, datamodule: LightningDataModule, loader_arguments: dict[str, Any]) -> None:
        if not isinstance(cast(Any, datamodule), LightningDataModule):
            raise TypeError(
                "StageDataModule.wrap: give it a lightning.pytorch.LightningDataModule, got a "
                f"{type(datamodule).__module__}.{type(datamodule).__name__}."
            )
        _check(loader_arguments)
        super().__init__()
        for name in (*LOADER_ARGUMENTS, *(f"{name}_dataset" for name in LOADERS)):  # it has its own, or has none
            vars(self).pop(name, None)
        self._given = dict(loader_arguments)
        self._wrapped = datamodule
        self._log_hyperparams = cast(Any, datamodule)._log_hyperparams
        self.prepare_data_per_node = datamodule.prepare_data_per_node
        self.allow_zero_length_dataloader_with_multiple_devices = (
            datamodule.allow_zero_length_dataloader_with_multiple_devices
        )
        self._set_hooks()

    def _set_hooks(self) -> None:
        if "_wrapped" not in vars(self):
            return
        for hook in HOOKS:
            if is_overridden(hook, self._wrapped):
                vars(self)[hook] = getattr(self._wrapped, hook)
        for name in LOADERS:
            hook = f"{name}_dataloader"
            if not is_overridden(hook, self._wrapped):
                vars(self)[hook] = MethodType(getattr(DataHooks, hook), self)  # none, to Lightning
            else:
                vars(self)[hook] = self._train if name == "train" else partial(self._evaluate, hook)

    # Lightning asks for these of any DataModule, and finds them before __getattr__ is asked.
    @property
    def hparams(self) -> Any:
        wrapped: Any = self._wrapped
        return wrapped.hparams

    @property
    def hparams_initial(self) -> Any:
        return self._wrapped.hparams_initial

    def __setattr__(self, name: str, value: Any) -> None:
        """What is an attribute of the DataModule's, or a loader's argument, is set where it is read: so that
        ``Tuner.scale_batch_size`` finds what it has asked for."""
        if "_wrapped" not in vars(self) or name.startswith("_"):
            super().__setattr__(name, value)
        elif name in self._given:
            self._given[name] = value
        elif name in vars(self._wrapped) and name not in vars(self):
            setattr(self._wrapped, name, value)
        else:
            super().__setattr__(name, value)
            if name == "trainer":  # Lightning tells it to the DataModule that it knows
                self._wrapped.trainer = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_wrapped" not in vars(self):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return self._given[name] if name in self._given else getattr(self._wrapped, name)

    # Loaders ----------------------------------------------------------------------------------------------------

    def loader_arguments(self) -> dict[str, Any]:
        """Those given for all loaders, as they are now."""
        return dict(self._given)

    def _train(self) -> Any:
        new_feed = self._training.begin(self.trainer)
        return self._converted(
            self._wrapped.train_dataloader(), "train_dataloader", lambda: new_feed(), self._is_shared_out()
        )

    def _evaluate(self, hook: str) -> Any:
        feed = self._training.evaluation_feed()
        return self._converted(getattr(self._wrapped, hook)(), hook, lambda: feed, False)

    def _is_shared_out(self) -> bool:
        """Whether Lightning gives the ranks a sampler of its own, in place of torch's."""
        connector: Any = getattr(self.trainer, "_accelerator_connector", None)
        return connector is not None and connector.use_distributed_sampler and connector.is_distributed

    def _converted(self, loaders: Any, name: str, new_feed: Callable[[], Feed], is_shared_out: bool) -> Any:
        def convert(loader: Any) -> Any:
            if not is_convertible(loader):
                return loader
            arguments = arguments_of(loader, self._given)
            sampler = arguments.get("sampler")
            if is_shared_out and type(sampler) in (RandomSampler, SequentialSampler):
                # Lightning shuffles whatever it trains with on several ranks.
                arguments["sampler"] = elastic(loader.dataset, arguments.get("seed"), arguments.get("drop_last", False))
            return fed_class(class_for(loader))(feed=new_feed(), **arguments)

        if isinstance(loaders, CombinedLoader):
            return CombinedLoader(leaves(loaders.iterables, name, convert), cast(Any, loaders)._mode)
        return leaves(loaders, name, convert)

    # State and end ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        base: Any = super()
        mine, theirs = base.state_dict(), self._wrapped.state_dict()
        return {**mine, "wrapped": theirs} if mine or theirs else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        mine = dict(state_dict)
        theirs = mine.pop("wrapped", {})
        base: Any = super()
        if mine:
            base.load_state_dict(mine)
        self._wrapped.load_state_dict(theirs)

    def teardown(self, stage: str) -> None:
        base: Any = super()
        base.teardown(stage)
        self._wrapped.teardown(stage)

    def on_exception(self, exception: BaseException) -> None:
        base: Any = super()
        base.on_exception(exception)
        self._wrapped.on_exception(exception)


def _check(given: dict[str, Any]) -> None:
    orders = sorted(set(given) & set(ORDERS))
    if orders:
        raise TypeError(
            f"StageDataModule.wrap: {', '.join(orders)} cannot be given, since each loader of the DataModule has an "
            "order of its own. Change it there."
        )
    unknown = sorted(set(given) - set(LOADER_ARGUMENTS))
    if unknown:
        raise TypeError(f"StageDataModule.wrap: StageLoader has no argument {', '.join(unknown)}.")
