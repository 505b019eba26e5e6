"""Transformers: a Trainer class in, one that trains, evaluates and predicts with StageLoaders, out.

Guarantees: the batches are those of the Trainer's own loaders but for the order of a shuffled one, which an
ElasticSampler gives; a checkpoint has the training loader's place, and a resumed run goes on there without reading what
was passed.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import RandomSampler

try:
    import transformers.trainer
    from transformers import TrainerCallback, trainer_utils
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "transformers":
        raise
    raise ImportError(
        "torchstage.integrations.transformers needs transformers: pip install 'torchstage[transformers]'."
    ) from error

from torchstage.integrations.accelerate import keep_stage_loaders
from torchstage.integrations.prepared import Prepared
from torchstage.samplers import ElasticSampler

TRAINER: Any = transformers.trainer
UTILS: Any = trainer_utils


class StageTrainerMixin:
    """``class MyTrainer(StageTrainerMixin, Trainer)``: its loaders are StageLoaders.

    ``dataloader_num_workers`` of the arguments is the number of threads; ``stage_loader_arguments`` may be overridden
    for StageLoader's own. With ``ignore_data_skip=True`` a resumed run begins its epoch anew, as in any Trainer.

    Args:
        arguments: the Trainer's.
        others: the Trainer's, by name.
    """

    def __init__(self, *arguments: Any, **others: Any) -> None:
        super().__init__(*arguments, **others)
        trainer: Any = self
        trainer.add_callback(SaveLoader())

    def stage_loader_arguments(self) -> dict[str, Any]:
        """StageLoader's arguments, in place of those that the Trainer gives."""
        return {}

    def create_accelerator_and_postprocess(self) -> None:
        trainer: Any = super()
        trainer.create_accelerator_and_postprocess()
        known: Any = self
        keep_stage_loaders(known.accelerator, convert=True, loader_arguments=self.stage_loader_arguments)

    def _get_train_sampler(self, *arguments: Any, **others: Any) -> Any:
        trainer: Any = super()
        sampler = trainer._get_train_sampler(*arguments, **others)
        if type(sampler) is not RandomSampler or sampler.replacement:
            return sampler
        known: Any = self
        seed = known.args.seed if known.args.data_seed is None else known.args.data_seed
        tail = "drop" if known.args.dataloader_drop_last else "pad"
        return ElasticSampler(
            sampler.data_source, known.args.world_size, known.args.process_index, seed=seed, tail=tail
        )

    def train(self, resume_from_checkpoint: Any = None, *arguments: Any, **others: Any) -> Any:
        """The Trainer's, which passes over batches by their state."""
        trainer: Any = super()
        with _passing(lambda loader, number: self._passed(loader, number, resume_from_checkpoint)):
            return trainer.train(resume_from_checkpoint, *arguments, **others)

    def _passed(self, loader: Prepared, number: int, checkpoint: Any) -> Any:
        """The loader, behind the batches that were trained with."""
        known: Any = self
        folder: Any = UTILS.get_last_checkpoint(known.args.output_dir) if checkpoint is True else checkpoint
        path = Path(folder) / name_of(known.args.process_index)
        if not path.exists():
            path = Path(folder) / name_of(0)
        if not path.exists():
            raise FileNotFoundError(
                f"StageTrainerMixin: the checkpoint {folder} has no state of the training loader, and {number} batches "
                "of its epoch were trained with. It was saved without StageTrainerMixin: set ignore_data_skip=True to "
                "begin that epoch anew."
            )
        loader.load_state_dict(torch.load(path, weights_only=True))
        loader.number_epochs_from_here()  # the Trainer takes all passes over a stream without a length for one epoch
        return loader


class SaveLoader(TrainerCallback):
    """Puts the training loader's state into each checkpoint, by rank."""

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        loader = others.get("train_dataloader")
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if isinstance(loader, Prepared) and folder.is_dir():
            torch.save(loader.state_dict(), folder / name_of(args.process_index))


def name_of(rank: int) -> str:
    return f"stage_loader_{rank}.pt"


@contextmanager
def _passing(passed: Callable[[Prepared, int], Any]) -> Generator[None]:
    """While it lasts, the Trainer's function that skips batches asks the loader, if that is one of ours."""
    theirs = TRAINER.skip_first_batches

    def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
        return passed(dataloader, num_batches) if isinstance(dataloader, Prepared) else theirs(dataloader, num_batches)

    TRAINER.skip_first_batches = skip_first_batches
    try:
        yield
    finally:
        TRAINER.skip_first_batches = theirs
