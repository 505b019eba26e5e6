"""Isolation: a dataset and its functions in, who may use them out: all threads, one at a time, or each its own copy.

Looked for before and after the first sample: handles that have one position, random generators, and objects that the
sample changes. Such a dataset is copied for each thread, as far as it has to be; where that fails, one thread at a time
uses it, behind one lock of the process.

Guarantees: no user code is called; the user's own objects are left as they were before the first sample; no two
datasets that had to be serialised are used at the same time in this process.
"""

import hashlib
import os
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

from torchstage.changes import ClassSnapshot, Snapshot
from torchstage.copies import SEEDED, CannotCopy, Private, private_copy
from torchstage.engine.deadlines import Stuck
from torchstage.errors import warn_user
from torchstage.graph import Found, Graph
from torchstage.looking import dict_of, is_a, own_attributes, type_of
from torchstage.search import Search
from torchstage.stores import stored_to
from torchstage.twins import is_holder, others_that_change

Isolation = Literal["auto", "shared", "per_thread", "serial"]
ISOLATIONS: tuple[Isolation, ...] = ("auto", "shared", "per_thread", "serial")

_lock = threading.RLock()  # one for the process: two datasets may hold the same handle, or one the other's dataset


_serialised: set[bool] = set()  # not empty once a dataset had to be serialised in this process


class _ThisThread(threading.local):
    num_held: int = 0


_this_thread = _ThisThread()


def has_serialised() -> bool:
    """Whether any dataset had to be serialised in this process so far."""
    return bool(_serialised)


def is_inside_serialised() -> bool:
    """Whether the calling thread is inside a dataset that is used by one thread at a time: what it starts must not need
    other threads to use such a dataset, since they would wait for it for ever."""
    return _this_thread.num_held > 0


def _free_lock() -> None:
    """In a forked child: the lock may be held by a thread that stayed behind in the parent."""
    cast(Any, _lock)._at_fork_reinit()
    _this_thread.num_held = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_lock)


class Guard:
    """A loader's decision on who may share its dataset, kept from epoch to epoch."""

    def __init__(self, isolation: Isolation) -> None:
        if isolation not in ISOLATIONS:
            raise ValueError(
                f"StageLoader: isolation must be one of {', '.join(map(repr, ISOLATIONS))}, got {isolation!r}. "
                "Use 'auto' to let the loader look for what threads must not share."
            )
        self.isolation: Isolation = isolation
        self.is_tried = isolation in ("shared", "serial")  # whether a first sample was looked at already
        self.is_serial = False
        self._has_found = False  # whether anything was ever found: a quick look would miss it now and then
        self.changing: set[str] = set()  # paths of objects that a sample changes
        self._parts: set[tuple[str, int, int]] | None = None  # of the dataset, as they were last
        self._last_graph: Graph | None = None  # of a search that found nothing: for the trial that follows it
        self._trouble: str | None = None  # why it was serialised, until that was said
        self.stuck = Stuck()  # threads that may be inside for ever
        self.has_said_unlooked = False  # that time-outs of stages are of no effect here
        if isolation == "serial":
            self._serialise()

    def privates(
        self, count: int, roots: dict[str, Any], init_fn: Any = None, *, is_guarded: bool = True
    ) -> list[Private]:
        """Copies for that many threads of what they must not share, from the objects as they are now; none if they may
        share all of it, or if it had to be serialised, which ``is_serial`` tells afterwards.

        ``is_guarded=False``: only the random generators, for code that runs in the caller's own thread.
        ``init_fn``: follows what it is bound to. What it alone leads to is nobody's sample, and is not judged.
        """
        if self.is_serial or self.isolation == "shared" or count < 1:
            return []
        is_deep = not self.is_tried or self._has_found or bool(self.changing) or self.isolation == "per_thread"
        graph = Search(is_first=is_deep).run(**roots)
        if not is_guarded:
            graph.handles.clear()
        dirty = self._dirty(graph) if is_guarded else set[int]()
        if not (dirty or graph.handles or graph.generators):
            self._last_graph = graph if is_guarded and not self.is_tried else None
            return []
        self._has_found = True
        if not is_deep:  # a quick look found something: now look at all
            graph = Search(is_first=True).run(**roots)
        if init_fn is not None:
            roots = {**roots, "worker_init_fn": init_fn}
            judged, graph = graph, Search(is_first=True).run(**roots)
            graph.handles[:], graph.generators[:] = judged.handles, judged.generators
        try:
            return [private_copy(graph, roots, dirty) for _ in range(count)]
        except CannotCopy as error:
            if is_guarded:
                self.give_up(graph, error)
            return []

    def notice(self, dataset: Any) -> None:
        """Try the first samples again if the dataset was given other parts since they were tried."""
        parts = own_attributes(dataset).items()
        now = {(name, id(type_of(part)), id(part) if dict_of(part) else 0) for name, part in parts}
        if self.isolation == "auto" and self._parts is not None and now != self._parts:
            self.is_tried = False
        self._parts = now

    def graph_of(self, roots: dict[str, Any]) -> Graph:
        """What the objects hold: as it was found a moment ago, or searched for now."""
        graph, self._last_graph = self._last_graph, None
        return graph or Search(is_first=True).run(**roots)

    def _dirty(self, graph: Graph) -> set[int]:
        if self.isolation == "per_thread":
            own = {id_: node.value for id_, node in graph.nodes.items() if graph.is_own(id_)}
            found = {id_ for id_, value in own.items() if is_holder(value)} | others_that_change(own)
        else:
            found = set[int]()
        return found | {id_ for id_, node in graph.nodes.items() if node.path in self.changing}

    def give_up(self, graph: Graph, error: CannotCopy) -> None:
        found = next((found for found in graph.handles if found.path == error.path), None)
        what = "samples change what the dataset holds"
        if found:
            what = f"{found.path} is an open {found.kind}, which two threads must not use at once"
        why = error.why if found else str(error)
        self._trouble = f"{what}, and it cannot be copied for each thread ({why})"
        self._serialise()

    def must_serialise(self, roots: dict[str, Any]) -> bool:
        """For code that runs in the caller's own thread: whether it must not run beside what is serialised."""
        if self.isolation == "auto" and not self.is_serial:
            graph = Search(is_first=not self.is_tried).run(**roots)
            if graph.handles:
                self._serialise()
        return self.is_serial

    def _serialise(self) -> None:
        self.is_serial = True
        _serialised.add(True)

    def serialised(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function`` behind the lock, if the dataset has to be serialised by the time it is called."""

        def one_at_a_time(*arguments: Any) -> Any:
            if not self.is_serial:
                return function(*arguments)
            with _lock:
                _this_thread.num_held += 1
                try:
                    return function(*arguments)
                finally:
                    _this_thread.num_held -= 1

        return one_at_a_time

    def warn(self, *, is_heard: bool) -> None:
        """Say once why the dataset was serialised, if it was and that is of interest."""
        trouble, self._trouble = self._trouble, None
        if trouble is not None and is_heard:
            warn_user(
                f"StageLoader: {trouble}, so this dataset is used by one thread at a time. Ways out: open it inside "
                "__getitem__; or pass isolation='shared' if it is safe to share; or "
                "worker_method='multiprocessing' for processes with copies of their own."
            )


class Trial:
    """The first sample, looked at before and after, in one thread while no other is let in."""

    def __init__(self, guard: Guard, roots: dict[str, Any]) -> None:
        """Remember what the objects hold, before the first sample."""
        self._guard = guard
        self._roots = roots
        self._before = guard.graph_of(roots)
        self._snapshots: list[Snapshot] = []
        self._of_others: list[ClassSnapshot | Snapshot] = []
        self._remember(self._before)

    def look(self) -> bool:
        """Between the first sample and the second. False if there should be no second before the judge has spoken: the
        first opened what cannot be copied, and another loader may use it just now."""
        graph = Search(is_first=True).run(**self._roots)
        self._remember(graph)
        known = {id(found.value) for found in self._before.handles}
        return all(id(found.value) in known or graph.is_own(id(found.value)) for found in graph.handles)

    def go_on(self) -> None:
        """Between two samples, where the user had the first: what was changed since then may be the user's doing. What
        the first one opened is still known by its absence before."""
        self._snapshots.clear()
        self._of_others.clear()
        self._remember(Search(is_first=True).run(**self._roots))

    def _remember(self, graph: Graph) -> None:
        """What the objects hold now; and apart, what classes and modules do."""
        self._snapshots.append(Snapshot(graph))
        self._of_others += [ClassSnapshot(graph), Snapshot(graph, is_own=False)]

    def uncontrolled(self, names_in: Callable[[dict[str, Any]], list[str]]) -> list[str]:
        """Functions that the objects' code knows by name and that draw past a sample's own generators."""
        found: dict[str, None] = {}
        for node in self._before.nodes.values():
            if isinstance(node.value, types.FunctionType):
                known = node.value.__globals__
                own = {name: known[name] for name in node.value.__code__.co_names if name in known}
                found.update(dict.fromkeys(f"{name!r} in {node.path}" for name in names_in(own)))
        return list(found)

    def judge(self, private: Private | None, *, is_alone: bool) -> Private | None:
        """As below; where looking itself fails, the dataset is serialised: what was not understood is not shared."""
        try:
            return self._judged(private, is_alone)
        except Exception as error:
            self._guard.give_up(self._before, CannotCopy(f"looking at it failed: {error!r}"))
            return private

    def _judged(self, private: Private | None, is_alone: bool) -> Private | None:
        """After the first samples, in their thread: what this thread uses from now on; None if it may go on sharing.

        What they changed or opened stays with this thread; the objects that it was found in are given back what they
        held before, so that the other threads (and the user) start from there.
        """
        guard, known = self._guard, {id(found.value) for found in (*self._before.handles, *self._before.generators)}
        graph = Search(is_first=True).run(**self._roots)
        of_others = [path for snapshot in self._of_others for path in snapshot.changed_paths()]
        if of_others:
            why = "it belongs to a class or a module, which has no copies for single threads"
            guard.give_up(graph, CannotCopy(why, of_others[0]))
            return private
        opened = [found for found in (*graph.handles, *graph.generators) if id(found.value) not in known]
        opened = [found for found in opened if graph.is_own(id(found.value)) or found in graph.handles]
        holders = _above(graph, [id(found.value) for found in opened])
        changed = [node for snapshot in self._snapshots for node in snapshot.changed()]
        dirty = {id(node.value) for node in changed} | holders
        stored = {id(node.value) for node in stored_to(graph)} - dirty if is_alone else set[int]()
        if not dirty and not stored and not opened:
            return private
        own = self._split(graph, dirty | stored, is_alone) if stored else None  # if it can be had: it is only likely
        if own is not None:
            dirty |= stored
        elif not dirty and not opened:
            return private
        else:
            own = self._split(graph, dirty, is_alone, is_needed=True)
        if own is None:
            return private
        self._snapshots[0].put_back(also=dirty)
        guard.changing.update(path for id_ in dirty if (path := self._path_of(id_, graph)) is not None)
        hold_new_generators(own, [found for found in opened if found in graph.generators])
        if private is not None:
            own.held, own.handles = [*private.held, *own.held], [*private.handles, *own.handles]
            private.handles = []
            own.copies.append(private)  # its objects may have finalizers
        return own

    def _path_of(self, id_: int, graph: Graph) -> str | None:
        """How to reach an object from the roots as they were before: what the samples set leads nowhere then."""
        node = next((one.nodes[id_] for one in (self._before, graph) if id_ in one.nodes), None)
        return None if node is None else node.path

    def _split(self, graph: Graph, dirty: set[int], is_alone: bool, *, is_needed: bool = False) -> Private | None:
        """This thread's own; None if it cannot be had. Where it is needed, the dataset is serialised then."""
        try:
            if not is_alone:
                raise CannotCopy("other threads had to be let in before the first sample was there")
            return private_copy(graph, self._roots, dirty, moves=True)
        except CannotCopy as error:
            if is_needed:
                self._guard.give_up(graph, error)
            return None


def _above(graph: Graph, ids: list[int]) -> set[int]:
    """The ids of the objects that lead from the roots to these."""
    found: set[int] = set()
    waiting = [*ids]
    while waiting:
        above = {holder for holder, _ in graph.nodes[waiting.pop()].holders if holder} - found
        found |= above
        waiting += above
    return found


def hold_new_generators(own: Private, found: Sequence[Found] | None = None) -> None:
    """Have the generators that user code made in a thread's copies seeded for each sample too, alike in each thread."""
    held = {id(generator) for generator, _ in own.held}
    if found is None:
        graph = Search(is_first=False).run(**own.roots)
        found = [one for one in graph.generators if graph.is_own(id(one.value))]
    for one in found:
        if id(one.value) not in held and is_a(one.value, *SEEDED):
            own.held.append((one.value, hashlib.blake2b(one.path.encode(), digest_size=32).digest()))
