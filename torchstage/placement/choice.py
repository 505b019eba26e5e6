"""Placement: what was measured of each stage in, threads or processes for it out, with the reason.

Guarantees: a choice never changes what is loaded, only where; what holds the GIL is never given more than one thread.
"""

from dataclasses import dataclass
from itertools import product

from torchstage.placement.model import GOOD_FOR_THREADS, Method, Scene, Unit, collates_there, loss, rate, unit_rates

MARGIN = 0.8  # of the seconds a sample that threads take: processes must do with less, or noise would decide
MAX_UNITS = 8  # of which every combination is looked at: 256 of them


@dataclass(frozen=True, slots=True)
class UnitChoice:
    """Where a unit is to run, and why. ``max_threads``: how many threads may be in it at once; None: as many as there
    are. Samples a second are of this unit alone. ``number``: of the user's stage; None: the dataset's own stages."""

    labels: tuple[str, ...]
    method: Method
    reason: str
    threads_rate: float
    processes_rate: float
    max_threads: int | None = None
    number: int | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """Where everything is to run. ``gain_seconds``: a sample, against threads alone; ``start_seconds``: what it costs
    to have processes. ``rate``, ``threads_rate``: samples a second."""

    units: tuple[UnitChoice, ...]
    collate: Method
    rate: float
    threads_rate: float
    gain_seconds: float = 0.0
    start_seconds: float = 0.0

    @property
    def wants_processes(self) -> bool:
        return any(unit.method == "process" for unit in self.units)

    @property
    def dataset_moves(self) -> bool:
        """Whether the dataset's own stages are to run in processes."""
        return any(unit.method == "process" and unit.number is None for unit in self.units)

    @property
    def moved_stages(self) -> frozenset[int]:
        """The numbers of the user's stages that are to run in processes."""
        moved = (unit.number for unit in self.units if unit.method == "process")
        return frozenset(number for number in moved if number is not None)

    def pays(self, num_left: int | None, num_made: int) -> bool:
        """Whether to start processes now: over the samples that are left of this epoch they win more than they cost; or
        what was lost without them since that was known, over the epochs, has come to as much, so that whoever waited
        that long loses no more than twice what the best choice would have."""
        would_win = 0.0 if num_left is None else num_left * self.gain_seconds
        return self.wants_processes and max(would_win, num_made * self.gain_seconds) >= self.start_seconds


def choice_of(scene: Scene) -> Choice:
    """The best of all combinations, or threads where nothing is worth the change."""
    in_threads: tuple[Method, ...] = tuple(unit.asked or "thread" for unit in scene.units)
    best = min(_candidates(scene), key=lambda methods: loss(scene, methods))
    now = loss(scene, in_threads)
    if loss(scene, best) > MARGIN * now:
        best = in_threads
    gain = max(0.0, now - loss(scene, best))
    return Choice(
        tuple(_explained(scene, unit, method) for unit, method in zip(scene.units, best, strict=True)),
        "process" if collates_there(scene, best) else "thread",
        rate(scene, best),
        rate(scene, in_threads),
        gain,
        scene.costs.start_seconds(scene.num_threads),
    )


def _candidates(scene: Scene) -> list[tuple[Method, ...]]:
    can_move = scene.has_gil and scene.why_not is None and scene.num_threads > 0
    options: list[tuple[Method, ...]] = []
    num_free = 0
    for unit in scene.units:
        is_free = unit.asked is None and unit.is_known and can_move and num_free < MAX_UNITS
        num_free += is_free
        options.append(("thread", "process") if is_free else (unit.asked or "thread",))
    return list(product(*options))


def _explained(scene: Scene, unit: Unit, method: Method) -> UnitChoice:
    in_threads, in_processes = unit_rates(scene, unit)
    is_limited = method == "thread" and scene.has_gil and unit.is_gil_bound and unit.asked is None
    reason = _reason(scene, unit, method)
    if is_limited and scene.num_threads > 1:
        reason += "; so it is given one thread"
    most = 1 if is_limited else None
    return UnitChoice(unit.labels, method, reason, in_threads, in_processes, most, unit.number)


def _reason(scene: Scene, unit: Unit, method: Method) -> str:
    share = f"{100 * unit.share_without_gil:.0f} % of it runs without the GIL"
    if unit.asked is not None:
        return "as you said"
    if not scene.has_gil:
        return "this interpreter has no GIL"
    if not unit.is_known:
        return "too little was seen of it to say"
    if method == "process":
        if unit.is_gil_bound:
            return f"it holds the GIL ({share}): more threads would stop the training loop, not help"
        if unit.share_without_gil >= GOOD_FOR_THREADS:
            return f"{share}, but what comes next is in processes: so it is not sent there, and back"
        return f"{share}: processes use the cores better"
    if unit.is_gil_bound:
        why = f"it holds the GIL ({share}), "
        if scene.why_not is not None:
            return why + f"but processes cannot be used: {scene.why_not}"
        if scene.num_cores < 2:
            return why + "but there is one core, so that processes gain nothing"
        return why + "but to send it to a process costs more than that"
    if scene.why_not is not None and unit.share_without_gil < GOOD_FOR_THREADS:
        return f"processes cannot be used: {scene.why_not}"
    if unit.cpu_seconds < 0.5 * unit.wall_seconds and unit.share_without_gil >= GOOD_FOR_THREADS:
        return "it mostly waits: threads are cheapest for that"
    if unit.share_without_gil >= GOOD_FOR_THREADS:
        return f"{share}: threads do as well as processes, and nothing is sent"
    return f"{share}: processes would not gain enough"
