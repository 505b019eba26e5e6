"""TensorBoard: loaders and a step in; scalars of what they did since the step before, in the user's own writer, out.

Guarantees: only ``add_scalar`` and ``add_text`` of the writer are used, which torch's SummaryWriter and tensorboardX's
both have; nothing is flushed or closed; loaders are not kept.
"""

from typing import Any

from torchstage.metrics import in_name, metrics_of, unique
from torchstage.observe.watched import Loaders, Windows, named
from torchstage.stats import LoaderStats


class TensorBoard:
    """Writes what loaders did to a SummaryWriter of yours::

        board = TensorBoard(SummaryWriter("runs/first"))
        for step, batch in enumerate(loader):
            ...
            if step % 50 == 0:
                board.write({"train": loader}, step)

    Tags are ``data/train/wait_share``, ``data/train/decode/busy_share``; of a loader that stands alone
    ``data/wait_share``. ``docs/observe.md`` lists them. The advice is a text, ``data/train/advice``, written when
    another stage has become the bottleneck.

    Args:
        writer: a SummaryWriter of torch.utils.tensorboard or tensorboardX. Each rank has its own, if any, as runs of
            their own ("runs/first/rank_3"): TensorBoard draws them over each other.
        prefix: what all tags begin with.

    Raises TypeError for a writer that cannot write scalars.
    """

    def __init__(self, writer: Any, prefix: str = "data") -> None:
        if isinstance(writer, type) or not callable(getattr(writer, "add_scalar", None)):
            raise TypeError(
                f"observe.TensorBoard: writer must be a SummaryWriter, got {writer!r}. Make one with "
                "torch.utils.tensorboard.SummaryWriter(log_dir) or tensorboardX.SummaryWriter(log_dir)."
            )
        self._writer = writer
        self._prefix = prefix
        self._windows = Windows()
        self._bottlenecks: dict[str, str | None] = {}

    def write(self, loaders: Loaders, step: int) -> None:
        """Write what each loader did since the last time that it was written, at this step; the first time, since it
        was made. A loader that handed out nothing since then is left out, and so is a number that is not known.

        Raises TypeError for what is no StageLoader.
        """
        found = named(loaders, "observe.TensorBoard.write")
        for name, loader in zip(unique([name and in_name(name) for name in found]), found.values(), strict=True):
            stats = self._windows.next_of(loader)
            if stats.batches:
                self._write(stats, "/".join(filter(None, (self._prefix, name))), step)

    def _write(self, stats: LoaderStats, begin: str, step: int) -> None:
        for tag, value in metrics_of(stats, begin).items():
            self._writer.add_scalar(tag, value, step)
        if begin not in self._bottlenecks or self._bottlenecks[begin] != stats.bottleneck:
            self._bottlenecks[begin] = stats.bottleneck
            self._writer.add_text(f"{begin}/advice" if begin else "advice", stats.advice, step)
