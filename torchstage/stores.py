"""Stores: the functions that a sample may run in, the attributes that they set out.

One sample shows what one sample changed. An attribute that was set to the value it had already (index 0, say, where 0
stood) looks unchanged; the code tells that it is set.
"""

import types
from collections.abc import Iterable
from functools import lru_cache

from torchstage.graph import Graph, Node
from torchstage.looking import cells_of, dict_of, is_plain, names_in

ENTRIES: frozenset[str] = frozenset(
    ("__getitem__", "__getitems__", "__call__", "__next__", "forward")
)  # what a loader may begin with
STORES = ("STORE_ATTR", "DELETE_ATTR")


def stored_to(graph: Graph) -> list[Node]:
    """The objects of the graph with a plain attribute that code which a sample may run sets, and the functions that
    set a plain variable of the function around them."""
    by_holder: dict[int, list[types.FunctionType]] = {}
    functions: list[types.FunctionType] = []
    for node in graph.nodes.values():
        if type(node.value) is types.FunctionType:
            functions.append(node.value)
            for holder, _ in node.holders:
                by_holder.setdefault(holder, []).append(node.value)
    running = _running(functions)
    found = [node for id_, node in graph.nodes.items() if _sets_a_cell(node.value) and graph.is_own(id_)]
    for holder, own in by_holder.items():
        node = graph.nodes.get(holder)
        attributes = None if node is None else dict_of(node.value)
        if node is None or not attributes or not graph.is_own(holder):
            continue
        names = {name for function in _met(own) if function.__code__ in running for name in _stores(function.__code__)}
        if any(is_plain(attributes[name]) for name in names & attributes.keys()):
            found.append(node)
    return found


def _met(own: list[types.FunctionType]) -> Iterable[types.FunctionType]:
    """Of methods with one name the nearest, and those that it may go on to by ``super()``."""
    nearest: dict[str, types.FunctionType] = {}
    for function in own:
        if "super" in nearest.setdefault(function.__name__, function).__code__.co_names:
            nearest[function.__name__] = function
            yield function
        elif nearest[function.__name__] is function:
            yield function


def _sets_a_cell(function: object) -> bool:
    """Whether it is a function that sets a plain variable of the one around it (``nonlocal``)."""
    if type(function) is not types.FunctionType:
        return False
    cells = cells_of(function)
    return any(is_plain(cells[name]) for name in _sets_cells(function.__code__) & cells.keys())


def _running(functions: Iterable[types.FunctionType]) -> set[types.CodeType]:
    """The code that is reached by name from what a loader calls: more than really runs, never less in plain code."""
    by_name: dict[str, list[types.CodeType]] = {}
    for function in functions:
        by_name.setdefault(function.__name__, []).append(function.__code__)
    names, reached = set[str](), set[types.CodeType]()
    waiting: list[str] = list(ENTRIES)
    while waiting:
        name = waiting.pop()
        if name in names:
            continue
        names.add(name)
        for code in by_name.get(name, ()):
            reached.add(code)
            waiting.extend(_names(code))
    return reached


@lru_cache(maxsize=1024)
def _names(code: types.CodeType) -> frozenset[str]:
    inner = (_names(const) for const in code.co_consts if isinstance(const, types.CodeType))
    return frozenset(code.co_names).union(*inner)


@lru_cache(maxsize=1024)
def _sets_cells(code: types.CodeType) -> frozenset[str]:
    return frozenset(names_in(code, "STORE_DEREF")) & set(code.co_freevars)


@lru_cache(maxsize=1024)
def _stores(code: types.CodeType) -> frozenset[str]:
    own = names_in(code, *STORES)
    inner = (_stores(const) for const in code.co_consts if isinstance(const, types.CodeType))
    return frozenset(own).union(*inner)
