"""Stats: what each thread did in; sums over all threads out.

Guarantees: a thread writes its own tally only, without a lock; readers may be one visit behind, never wrong; what is
kept does not grow with the number of samples.

How a sample is timed. A thread's visit to a batch is timed always, and costs two looks at the clock. Stage by stage, a
sample is timed if samples take ``LONG_SECONDS`` or more, or if it is a thread's ``EVERY``-th: that one then stands for
as many. Its CPU time is asked for once in ``CPU_PERIOD_SECONDS``: that costs a call into the system.
"""

from typing import Any

from torchstage.engine.histogram import NUM_BINS, Histogram, bin_of, joined
from torchstage.engine.watch import Laps, Watch, here

LONG_SECONDS = 100e-6  # a sample that takes so long is timed by itself: looking at the clock costs a hundredth of it
EVERY = 64  # of shorter samples, one in so many
EVERY_OF_BATCHES = 256  # of what is done with whole batches that are as short, a batch after so many samples


class StageTally:
    """What was timed of one stage."""

    __slots__ = ("cpu_of_seconds", "cpu_seconds", "histogram", "num_errors", "num_lost", "seconds")

    def __init__(self) -> None:
        self.num_errors = 0
        self.num_lost = 0  # samples that came no further than here, for errors
        self.seconds = 0.0  # of the samples that were timed, each as often as it stands for others
        self.cpu_seconds = 0.0  # of those of them whose CPU time was asked for
        self.cpu_of_seconds = 0.0  # and their wall time
        self.histogram: Histogram = [0] * NUM_BINS

    def add(self, seconds: float, weight: int) -> None:
        """A sample took so long; it stands for ``weight`` samples."""
        self.seconds += weight * seconds
        self.histogram[bin_of(seconds)] += weight

    def take(self) -> "StageSum":
        """All of it, after which nothing is left."""
        bins = [(number, count) for number, count in enumerate(self.histogram) if count]
        taken = self.num_errors, self.num_lost, self.seconds, self.cpu_seconds, self.cpu_of_seconds, bins
        self.__init__()
        return taken

    def give(self, taken: "StageSum") -> None:
        """What was taken from another one is counted here."""
        num_errors, num_lost, seconds, cpu_seconds, cpu_of_seconds, bins = taken
        self.num_errors += num_errors
        self.num_lost += num_lost
        self.seconds += seconds
        self.cpu_seconds += cpu_seconds
        self.cpu_of_seconds += cpu_of_seconds
        for number, count in bins:
            self.histogram[number] += count

    def plus(self, other: "StageTally", sign: int = 1) -> "StageTally":
        """The sum, or the difference, as a new one."""
        total = StageTally()
        total.num_errors = self.num_errors + sign * other.num_errors
        total.num_lost = self.num_lost + sign * other.num_lost
        total.seconds = self.seconds + sign * other.seconds
        total.cpu_seconds = self.cpu_seconds + sign * other.cpu_seconds
        total.cpu_of_seconds = self.cpu_of_seconds + sign * other.cpu_of_seconds
        total.histogram = joined(self.histogram, other.histogram, sign)
        return total


class Work:
    """What was done of stages that run one after another in the same threads."""

    __slots__ = ("is_long", "num_samples", "num_untimed", "seconds", "stages")

    def __init__(self, num_stages: int) -> None:
        self.num_samples = 0  # that came in, also those that failed
        self.seconds = 0.0  # of all of them, timed visit by visit
        self.num_untimed = 0  # samples since the last one that was timed by itself
        self.is_long = True  # whether each is timed by itself; so are the first
        self.stages = tuple(StageTally() for _ in range(num_stages))

    def plus(self, other: "Work", sign: int = 1) -> "Work":
        """The sum, or the difference, as a new one."""
        total = Work(0)
        total.num_samples = self.num_samples + sign * other.num_samples
        total.seconds = self.seconds + sign * other.seconds
        total.stages = tuple(one.plus(more, sign) for one, more in zip(self.stages, other.stages, strict=True))
        return total

    def add(self, laps: Laps, num_each: int, weight: int) -> None:
        """What one ticket of ``num_each`` samples took at each stage. It stands for ``weight`` samples. A ticket that
        failed on the way is left out: it says nothing about the stages that it did not come to."""
        if num_each and len(laps) == len(self.stages):
            for stage, (seconds, cpu_seconds) in zip(self.stages, laps, strict=True):
                stage.add(seconds / num_each, weight)
                if cpu_seconds is not None:
                    stage.cpu_seconds += cpu_seconds
                    stage.cpu_of_seconds += seconds

    def every(self, num_each: int, seconds: float | None = None) -> int:
        """One ticket of so many samples in how many is timed by itself. ``seconds``: that a sample takes, if known."""
        is_long = self.is_long if seconds is None else seconds >= LONG_SECONDS
        return 1 if is_long else max(1, EVERY // (num_each or 1))

    def begin_batch(self, num_samples: int) -> bool:
        """Something is to be done with a whole batch. True if that is to be timed stage by stage: it took long the last
        time, or it is a while ago."""
        self.num_samples += num_samples
        self.num_untimed += num_samples
        return self.is_long or self.num_untimed >= EVERY_OF_BATCHES

    def end_batch(self, num_samples: int, seconds: float, laps: Laps | None) -> None:
        """It is done, or failed; ``laps`` if it was timed."""
        self.seconds += seconds
        self.is_long = seconds >= LONG_SECONDS
        if laps is not None:
            self.add(laps, num_samples, self.num_untimed)
            self.num_untimed = 0


Key = tuple[bool, tuple[str, ...]]  # whether the stages make whole batches; their names


# Of the stages behind a key: samples and seconds, and of each of them what StageTally has, with the bins of its
# histogram that are not empty. What another process counted travels like this.
StageSum = tuple[int, int, float, float, float, list[tuple[int, int]]]
Sums = list[tuple[Key, int, float, list[StageSum]]]


class Unprobed:
    """Stands for ``Probes`` that nobody listens to."""

    now = None


class Tally:
    """What one thread did so far. ``label``: the place that it works at. ``probes``: who else is told."""

    def __init__(self, label: str = "", probes: Any = None) -> None:
        self.label = label
        self.probes = probes or Unprobed()
        self.probe: Any = None  # that the watch is of
        self.works: dict[Key, Work] = {}
        self.parked: tuple[float, float | None] = (0.0, None)  # seconds so far, and since when it is now: read at once
        self.is_over = False  # the thread has ended: nothing is added any more
        self.watch = Watch()

    def follow(self) -> None:
        """Be timed for whoever is told now. Called in the thread that this is the account of."""
        before, self.probe = self.watch, self.probes.now
        self.watch: Watch = Watch() if self.probe is None else self.probe.watch()
        if here.watch is before:
            here.watch = self.watch

    def work(self, names: tuple[str, ...], *, of_batches: bool = False) -> Work:
        """What was done of these stages."""
        return self.work_at((of_batches, names))

    def work_at(self, key: Key) -> Work:
        """The same, by a key that is kept."""
        work = self.works.get(key)
        if work is None:
            work = self.works[key] = Work(len(key[1]))
        return work

    def take(self) -> Sums:
        """What was counted since this was asked last. Called in the thread that this is the account of."""
        sums: Sums = []
        for key, work in self.works.items():
            stages = [stage.take() for stage in work.stages]
            sums.append((key, work.num_samples, work.seconds, stages))
            work.num_samples, work.seconds = 0, 0.0
        return sums

    def add(self, sums: Sums) -> None:
        """What was counted elsewhere is counted here, too."""
        for key, num_samples, seconds, stages in sums:
            work = self.work_at(key)
            work.num_samples += num_samples
            work.seconds += seconds
            for stage, one in zip(work.stages, stages, strict=True):
                stage.give(one)

    def leave(self) -> None:
        """The thread is not in this process."""
        self.parked = (self.parked[0], None)
        self.is_over = True

    def fail(self, key: Key, stage: str, num_samples: int, *, is_error: bool = True) -> None:
        """So many samples come no further than this stage: for one error, or because they are left out."""
        names = key[1]
        failed = self.work_at(key).stages[names.index(stage) if stage in names else 0]
        failed.num_errors += is_error
        failed.num_lost += num_samples

    @property
    def num_samples(self) -> int:
        """Samples that came to a first stage of this thread's."""
        return sum(work.num_samples for (of_batches, _), work in list(self.works.items()) if not of_batches)


class Meter:
    """Recent costs in seconds a sample, as exponential means over visits. None until one was measured.

    Threads update it without a lock: a lost update is one of many measurements lost, never a wrong number kept.
    """

    __slots__ = ("finish_seconds", "sample_seconds")

    WEIGHT = 0.2  # a visit's share: five visits, and what it was before is mostly forgotten

    def __init__(self) -> None:
        self.sample_seconds: float | None = None  # of the stages of one sample
        self.finish_seconds: float | None = None  # of what is done with the whole batch, shared among its samples

    @property
    def work_seconds(self) -> float | None:
        """All that a sample costs. None until both parts are known."""
        sample, finish = self.sample_seconds, self.finish_seconds
        return None if sample is None or finish is None else sample + finish

    def add(self, num_samples: int, seconds: float) -> None:
        """Count one visit: that many samples in that many seconds."""
        self.sample_seconds = self._mean(self.sample_seconds, seconds / num_samples)

    def add_finish(self, num_samples: int, seconds: float) -> None:
        """Count one batch that was finished."""
        self.finish_seconds = self._mean(self.finish_seconds, seconds / num_samples)

    def forget(self) -> None:
        """What was measured holds no longer."""
        self.sample_seconds = self.finish_seconds = None

    def _mean(self, known: float | None, latest: float) -> float:
        return latest if known is None else known + self.WEIGHT * (latest - known)
