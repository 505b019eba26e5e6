"""Mains: a script is imported in processes if the program needs it and it is safe; else it is refused beforehand."""

import os
import pickle
import pickletools
import subprocess
import sys
import types
from pathlib import Path

import pytest

from torchstage.executors import mains
from torchstage.executors.mains import NotFound, NotImportable, Unguarded, main_of
from torchstage.executors.unpicklable import NotPicklable

ROOT = Path(__file__).parents[2]

SCRIPT = """
from torchstage.executors.processes import Processes

class Program:
    def start(self, desk, number, num_processes, at):
        return tripled

def tripled(job):
    return 3 * job

if __name__ == "__main__":
    with Processes(1) as processes:
        processes.send(Program(), {})
        print(processes.submit(5).result(), __name__)
"""


def of_main(name="Dataset"):
    """A pickle that refers to a class of the main module."""
    return pickle.dumps((1, "before", len, Of(name)), 5)


class Of:
    def __init__(self, name):
        self.name = name

    def __reduce__(self):
        return getattr(sys.modules["__main__"], self.name), ()


@pytest.fixture
def main(monkeypatch):
    module = types.ModuleType("__main__")
    module.Dataset = type("Dataset", (), {"__module__": "__main__"})
    module.Other = type("Other", (), {"__module__": "__main__"})
    monkeypatch.setitem(sys.modules, "__main__", module)
    return module


def test_a_program_that_does_not_refer_to_main_needs_nothing_of_it(main):
    assert main_of([pickle.dumps([1, "__main__", "Dataset", len])]) is None


def test_what_was_defined_in_a_notebook_is_refused_with_ways_out(main):
    with pytest.raises(NotImportable, match="Dataset: it is defined in the notebook or interactive") as caught:
        main_of([of_main()])
    assert isinstance(caught.value, NotPicklable)
    assert "multiprocessing_context='fork'" in str(caught.value)
    assert "worker_method='thread'" in str(caught.value)


def test_a_script_without_a_guard_is_refused(main, tmp_path):
    main.__file__ = str(tmp_path / "train.py")
    Path(main.__file__).write_text("for batch in loader: pass")
    with pytest.raises(Unguarded, match=r"would run .*train.py again, because Dataset, Other is defined there"):
        main_of([of_main(), of_main("Other")])


@pytest.mark.parametrize(
    "test", ['__name__ == "__main__"', '"__main__" == __name__', '__name__ == "__main__" and True']
)
def test_a_script_with_a_guard_is_imported_by_its_path(main, tmp_path, test):
    main.__file__ = str(tmp_path / "train.py")
    Path(main.__file__).write_text(f"from elsewhere import *\nif {test}:\n    pass")
    assert main_of([of_main()]) == (None, main.__file__)


def test_a_module_that_runs_as_main_is_imported_by_its_name(main, tmp_path):
    main.__file__ = str(tmp_path / "train.py")
    Path(main.__file__).write_text('class Dataset: pass\nif __name__ == "__main__":\n    pass')
    main.__spec__ = types.SimpleNamespace(name="package.train")
    assert main_of([of_main()]) == ("package.train", None)


GUARD = 'if __name__ == "__main__":\n    '


@pytest.mark.parametrize(
    "script",
    [
        f"{GUARD}class Dataset: pass",
        f"{GUARD}Dataset = 3",
        f"{GUARD}for Dataset in (): pass",
        f"{GUARD}from elsewhere import *",
        'if ready and "__main__" == __name__:\n    class Dataset: pass',
        f"def main():\n    class Dataset: pass\n{GUARD}main()",
        f"class Outer:\n    Dataset = 3\n{GUARD}pass",
        f"import Dataset.part as other\n{GUARD}pass",
        f"def main(arguments):\n    print(vars(arguments))\n{GUARD}class Dataset: pass",
    ],
)
def test_what_is_defined_where_processes_do_not_come_to_is_refused(main, tmp_path, script):
    main.__file__ = str(tmp_path / "train.py")
    Path(main.__file__).write_text(script)
    with pytest.raises(NotFound, match=r"would not find Dataset: in .*train.py.*at the top of the file") as caught:
        main_of([of_main()])
    assert isinstance(caught.value, NotPicklable)


@pytest.mark.parametrize(
    "binds",
    [
        "class Dataset: pass",
        "def Dataset(): pass",
        "async def Dataset(): pass",
        "import Dataset.part",
        "from a import b as Dataset",
        "from a import *",
        "first, (Dataset, *others) = 1, (2, 3)",
        "Dataset: int = 3",
        "if fast:\n    pass\nelif slow:\n    class Dataset: pass",
        "try:\n    import a\nexcept ImportError:\n    class Dataset: pass",
        "for Dataset in a: pass",
        "with a as Dataset: pass",
        "while (Dataset := a()): pass",
        "match a:\n    case {'x': Dataset}: pass",
        "match a:\n    case [1, *Dataset]: pass",
        "match a:\n    case {**Dataset}: pass",
        "def make():\n    global Dataset\n    Dataset = 3\nmake()",
        "globals()['Dataset'] = 3",
        "locals()['Dataset'] = 3",
        "def make():\n    setattr(sys.modules[__name__], 'Dataset', 3)",
        'if __name__ != "__main__":\n    class Dataset: pass',
        'if __name__ == "__main__":\n    pass\nelse:\n    class Dataset: pass',
        'if __name__ == "__main__" or always:\n    class Dataset: pass',
    ],
)
def test_what_a_process_may_find_is_not_refused(main, tmp_path, binds):
    main.__file__ = str(tmp_path / "train.py")
    Path(main.__file__).write_text(f"{binds}\n{GUARD}pass")
    assert main_of([of_main()]) == (None, main.__file__)


@pytest.mark.parametrize("protocol", [1, 2, 4, 5])
def test_references_are_found_in_pickles_of_all_protocols(main, protocol):
    with pytest.raises(NotImportable):
        main_of([pickle.dumps(["__main__", "a", main.Dataset, main.Dataset], protocol)])
    with pytest.raises(NotImportable):
        main_of([pickle.dumps([len, main.Dataset(), {"x": main.Other()}], protocol)])


def test_a_long_pickle_is_looked_at_no_further_than_it_takes(main, tmp_path, monkeypatch):
    """A dataset may hold a million names, and each epoch sends it."""
    main.__file__ = str(tmp_path / "train.py")
    Path(main.__file__).write_text('if __name__ == "__main__":\n    pass\nclass Dataset: ...')
    text = pickle.dumps(main.Dataset)
    monkeypatch.setattr(mains, "NUM_OPERATIONS", sum(1 for _ in pickletools.genops(text)) - 1)
    assert main_of([text[:-1] + b"what no pickle has"]) == (None, main.__file__)


def test_a_script_with_its_own_dataset_runs(tmp_path):
    """Its guarded part runs once."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, str(path)], env=environment, capture_output=True, text=True, timeout=100)
    assert (ran.stdout, ran.stderr, ran.returncode) == ("15 __main__\n", "", 0)


ABOVE_THE_GUARD = """
from torchstage import StageLoader

class Numbers:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index

with StageLoader(Numbers(), batch_size=2, num_workers=1, worker_method=METHOD) as others:
    print(list(others))
with StageLoader(Numbers(), batch_size=4, num_workers=1, worker_method="multiprocessing") as loader:
    try:
        print(list(loader))
    except Exception as error:
        print(type(error).__name__, error)

if __name__ == "__main__":
    print("done")
"""


def test_a_loader_above_the_guard_is_refused_in_processes_before_it_does_anything_there(tmp_path):
    """It has a guard, for something else: each process would load as well, and start processes of its own."""
    path = tmp_path / "train.py"
    path.write_text(ABOVE_THE_GUARD.replace("METHOD", "'thread'"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, str(path)], env=environment, capture_output=True, text=True, timeout=100)
    first, second, last = ran.stdout.splitlines()
    assert (first, last) == ("[tensor([0, 1]), tensor([2, 3])]", "done")
    assert second.startswith("Unguarded Each process runs")
    assert "iterates over a loader on the way" in second
    assert ran.returncode == 0
