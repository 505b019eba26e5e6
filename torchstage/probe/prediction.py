"""Prediction: what one thread alone showed in, the samples a second that N threads and N processes should make out.

The arithmetic is that of ``placement.model``, of a dataset whose threads nobody holds back. ``docs/probe.md`` tells it.

Guarantees: where too little was seen, nothing is predicted.
"""

from dataclasses import dataclass, replace

from torchstage.placement.model import Method, Scene, rate


@dataclass(frozen=True, slots=True)
class Prediction:
    """``sample_seconds``, ``cpu_seconds``: one sample in one thread, its share of the batch's collation included.
    ``share_without_gil``: 0 to 1, of ``sample_seconds``. ``threads_per_second``, ``processes_per_second``: samples of
    ``num_workers`` of them, on ``num_cores``."""

    num_workers: int
    num_cores: int
    sample_seconds: float
    cpu_seconds: float
    share_without_gil: float
    threads_per_second: float
    processes_per_second: float

    def __str__(self) -> str:
        return (
            f"One thread alone: {1e3 * self.sample_seconds:.3g} ms a sample, {1e3 * self.cpu_seconds:.3g} ms of it CPU "
            f"time, {100 * self.share_without_gil:.0f} % of it without the GIL. What is predicted comes from that."
        )

    def per_second(self, method: str) -> float:
        """``method``: a StageLoader's ``worker_method``."""
        return self.threads_per_second if method == "thread" else self.processes_per_second


def prediction_of(scene: Scene | None) -> Prediction | None:
    """Of what a loader measured; None: too little."""
    if scene is None or not scene.units or not all(unit.is_known for unit in scene.units):
        return None
    free = replace(scene, units=tuple(replace(unit, asked="thread") for unit in scene.units))
    every = [*(stage for unit in scene.units for stage in unit.stages), *([scene.collate] if scene.collate else [])]
    wall = sum(stage.wall_seconds for stage in every)
    held = sum(stage.cpu_seconds if stage.held_seconds is None else stage.held_seconds for stage in every)
    if wall <= 0:
        return None
    in_threads: tuple[Method, ...] = ("thread",) * len(scene.units)
    in_processes: tuple[Method, ...] = ("process",) * len(scene.units)
    return Prediction(
        scene.num_threads,
        scene.num_cores,
        wall,
        sum(stage.cpu_seconds for stage in every),
        max(0.0, 1 - held / wall),
        rate(free, in_threads),
        rate(scene, in_processes),
    )
