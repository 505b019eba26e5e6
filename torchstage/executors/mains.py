"""Mains: a pickled program in, how its processes get at the script that it refers to out.

Guarantees: a script that nothing refers to is not imported again; one that cannot be, or that would run its loader in
each process, is refused before anything starts.
"""

import ast
import os
import pickletools
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from itertools import islice
from multiprocessing import process
from pathlib import Path
from typing import Any

from torchstage.executors.unpicklable import NotPicklable

Main = tuple[str | None, str | None]  # the main module's name, or its path


class NotImportable(NotPicklable):
    """What a program refers to was defined where no other process can import it from: in a notebook, an interactive
    session, or ``python -c``."""


class Unguarded(NotPicklable):
    """What a program refers to was defined in a script that would run its loader again in each process."""


class _Importing:
    path: str | None = None  # of the script, while this process of a loader runs it to import what it defines


_importing = _Importing()


@contextmanager
def importing(path: str) -> Generator[None, None, None]:
    """In a process: the script is run in it meanwhile."""
    _importing.path = path
    try:
        yield
    finally:
        _importing.path = None


def refuse_while_imported() -> None:
    """A loader begins an epoch. Raises Unguarded in a process that is only to import the script, which would do all of
    its work there as well, and in the processes of that."""
    if (path := _importing.path) is not None:
        raise Unguarded(
            f"Each process runs {path} to import what is defined there, and the script iterates over a loader on the "
            'way: put what it does under `if __name__ == "__main__":`, or move what it defines to a module, or load '
            "with threads: worker_method='thread'.",
            "__main__",
            path,
        )


NUM_OPERATIONS = 20_000  # of a pickle, a tenth of a second: classes and functions come early


class NotFound(NotPicklable):
    """What a program refers to is defined in a part of the script that does not run in processes."""


def main_of(pickles: Iterable[bytes]) -> Main | None:
    """How a process imports the main module, if the pickles refer to it; None where they do not.

    Raises NotImportable, Unguarded or NotFound.
    """
    texts = [text for text in pickles if b"__main__" in text]
    # Some microseconds for each object of the dataset, in each epoch: one name is enough; that of its class is early.
    if next((name for text in texts for name in _names_in(text)), None) is None:
        return None
    main: Any = sys.modules["__main__"]
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    path = None if path is None else str(Path(getattr(process, "ORIGINAL_DIR", None) or ".", path))
    if path is None or not Path(path).is_file():
        what = _names(texts)
        raise NotImportable(
            f"Processes cannot import {what}: it is defined in the notebook or interactive session. Move it to a "
            "module, or take multiprocessing_context='fork', or load with threads: worker_method='thread'.",
            "__main__",
            what,
        )
    tree = _tree_of(path)
    if tree is not None and not _is_guarded(tree):
        what = _names(texts)
        raise Unguarded(
            f"Processes would run {path} again, because {what} is defined there: put what the script does under "
            '`if __name__ == "__main__":`, or move what it defines to a module, or load with threads: '
            "worker_method='thread'.",
            "__main__",
            what,
        )
    known = None if tree is None else names_bound(tree)
    names = sorted({name for text in texts for name in _names_in(text, NUM_OPERATIONS)})
    if known is not None and (missing := [name for name in names if name.partition(".")[0] not in known]):
        what = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise NotFound(
            f"Processes would not find {what}: in {path} it is defined where only your own process comes to, under "
            '`if __name__ == "__main__":` or in a function. Define it at the top of the file, above that, or in a '
            "module, or load with threads: worker_method='thread'.",
            "__main__",
            what,
        )
    if spec is not None and spec.name is not None:
        return spec.name, None
    return None, os.path.normpath(path)


def _names(texts: Sequence[bytes]) -> str:
    names = sorted({name for text in texts for name in _names_in(text)})
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _names_in(text: bytes, num_operations: int | None = None) -> Iterable[str]:
    """What a pickle takes from ``__main__``; in its first so many operations, if not in all."""
    strings: list[str] = []  # the last ones that it put on its stack
    memo: list[str | None] = []
    for code, argument, _ in islice(pickletools.genops(text), num_operations):
        name = code.name
        if name == "GLOBAL":
            module, _, found = str(argument).partition(" ")
            if module == "__main__":
                yield found
        elif name == "STACK_GLOBAL":
            if len(strings) >= 2 and strings[-2] == "__main__":
                yield strings[-1]
            strings = []
        elif name == "MEMOIZE":
            memo.append(strings[-1] if strings else None)
        elif name in ("BINGET", "LONG_BINGET"):
            number = int(argument or 0)
            strings.append((memo[number] if number < len(memo) else None) or "")
        elif isinstance(argument, str):
            strings.append(argument)
        else:
            continue
        strings = strings[-4:]


def _tree_of(path: str) -> ast.Module | None:
    try:
        return ast.parse(Path(path).read_bytes())
    except (SyntaxError, ValueError, OSError):
        return None  # it is no script that runs as it is: a process will tell what is wrong with it


def _is_guarded(tree: ast.Module) -> bool:
    """Whether the script does what it does under ``if __name__ == "__main__":``."""
    return any(isinstance(node, ast.If) and _asks_for_main(node.test) for node in ast.walk(tree))


def _asks_for_main(test: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Compare)
        and {"__name__"} == {part.id for part in (node.left, *node.comparators) if isinstance(part, ast.Name)}
        and any(isinstance(part, ast.Constant) and part.value == "__main__" for part in (node.left, *node.comparators))
        for node in ast.walk(test)
    )


def names_bound(tree: ast.Module) -> set[str] | None:
    """The global names that a script may have when it is imported: all that are bound outside of its guard, whatever
    is asked before. None: one cannot know, because it binds names in other ways."""
    found = _Bound()
    try:
        found.visit(tree)
    except RecursionError:
        return None
    return None if found.is_open else found.names


class _Bound(ast.NodeVisitor):
    """Walks over a module; of functions and classes, only what they do to global names."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.is_open = False

    def visit_If(self, node: ast.If) -> None:  # ast's own name for it
        if not _is_guard(node.test):
            self.generic_visit(node)
        for other in node.orelse if _is_guard(node.test) else ():
            self.visit(other)

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self.names.add(node.name)
        for inner in ast.walk(node):
            if isinstance(inner, ast.Global):
                self.names.update(inner.names)
            elif isinstance(inner, ast.Name | ast.Attribute | ast.Call):
                self._look(inner)

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _define  # noqa: N815  # likewise

    def visit_Name(self, node: ast.Name) -> None:
        self._look(node)
        if isinstance(node.ctx, ast.Store):
            self.names.add(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._look(node)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        self._look(node)
        self.generic_visit(node)

    def _look(self, node: ast.Name | ast.Attribute | ast.Call) -> None:
        """Note what may bind names that are written nowhere."""
        if isinstance(node, ast.Call):
            self.is_open |= isinstance(node.func, ast.Name) and node.func.id in ("vars", "locals") and not node.args
        else:
            name = node.id if isinstance(node, ast.Name) else node.attr
            self.is_open |= name in ("globals", "exec", "modules", "__main__", "_getframe")

    def visit_alias(self, node: ast.alias) -> None:
        self.is_open |= node.name == "*"
        self.names.add(node.asname or node.name.partition(".")[0])

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.MatchAs | ast.MatchStar) and node.name is not None:
            self.names.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest is not None:
            self.names.add(node.rest)
        super().generic_visit(node)


def _is_guard(test: ast.expr) -> bool:
    """Whether it is false in a process, for sure: it asks for nothing but ``__main__``, or for that and more."""
    if isinstance(test, ast.BoolOp):
        return isinstance(test.op, ast.And) and any(_is_guard(part) for part in test.values)
    return isinstance(test, ast.Compare) and [type(how) for how in test.ops] == [ast.Eq] and _asks_for_main(test)
