"""Floors: imports go downward only. The table below is the one of the design; the code is read, not run.

| floor | may import |
|---|---|
| 2: loader, iterators, lanes, safety | floors 1 and 0 |
| 1: plan, isolation, copies, rng, threads and the rest | torch, numpy, floor 0; of each other what is drawn |
| 0: engine | the standard library and what is drawn inside it |

A module that the table does not know fails here: whoever adds one says on which floor it stands.
"""

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "torchstage"

ENGINE = {
    "engine.pipeline": {
        *(
            "early",
            "outcome",
            "pool",
            "regroup",
            "segment",
            "gather",
            "channel",
            "ticket",
            "stats",
            "parking",
            "ledger",
            "heartbeat",
        ),
    },
    "engine.pool": {"segment", "channel", "ticket", "stats", "parking", "ledger"},
    "engine.deadlines": {"outcome", "pool", "segment", "stuck", "ticket", "told"},
    "engine.deadlines_elsewhere": {"concurrently", "deadlines", "event_loop", "executors", "probe", "ticket"},
    "engine.concurrently": {"outcome", "deadlines", "event_loop", "ticket", "stats", "ledger", "told"},
    "engine.event_loop": {"segment", "ticket", "stats", "watch", "ledger"},
    "engine.executors": {"outcome", "segment", "ticket", "stats", "watch", "ledger", "told"},
    "engine.heartbeat": {"ledger", "parking", "told"},
    "engine.ledger": {"histogram", "stats", "ticket", "probe"},
    "engine.probe": {"outcome", "watch", "ticket", "told"},
    "engine.told": {"ticket"},
    "engine.segment": {"outcome", "gather", "channel", "ticket", "stats", "watch", "stuck", "parking", "priority"},
    "engine.stuck": {"outcome", "ticket"},
    "engine.gather": {"outcome", "stats", "ticket"},
    "engine.regroup": {"gather", "ticket"},
    "engine.early": {"ticket"},
    "engine.channel": set(),
    "engine.ticket": {"outcome", "stats"},
    "engine.outcome": set(),
    "engine.stats": {"histogram", "watch"},
    "engine.watch": set(),
    "engine.histogram": set(),
    "engine.parking": set(),
    "engine.priority": set(),
}
FLOOR_1 = {
    # What a loader is told to do, and what the engine makes of it.
    "crew": {
        "assembly",
        "looking",
        "search",
        "seeds",
        "copies",
        "errors",
        "first",
        "isolation",
        "placement.parts",
        "placement.placement",
        "plan",
        "rng",
        "sites",
        "threads",
    },
    "plan": {
        *(
            "assembly",
            "budget",
            "buffers",
            "collate",
            "copies",
            "executors.failures",
            "first",
            "limits",
            "line",
            "order",
            "rng",
            "seeds",
            "sites",
            "tolerance",
        ),
    },
    "assembly": {
        *("copies", "coroutines", "elsewhere", "first", "limits", "line", "order", "rng", "seeds", "sites", "errors"),
        "tolerance",
    },
    "limits": {"line"},
    "timeouts": {"errors", "isolation", "limits", "line", "processes", "programs", "sites", "stage"},
    "sites": {"copies", "elsewhere", "line", "threads"},
    "elsewhere": {"coroutines", "order", "rng", "seeds", "errors"},
    "first": {"budget"},
    "reading": {
        "collate",
        "copies",
        "cuts",
        "marks",
        "plan",
        "replay",
        "rng",
        "scope_states",
        "sieve",
        "then",
        "threads",
    },
    "turns": {"cuts", "reading"},
    "collate": {"buffers", "errors"},
    "buffers": set(),
    "budget": set(),
    "errors": set(),
    "threads": {"copies", "errors", "rng", "worker_info"},
    "worker_info": {"rng"},
    "modes": set(),
    "order": {"samplers", "seeds"},
    # What processes run, and whose they are.
    "making": set(),
    # Samples that fail.
    "tolerance": {"elsewhere", "errors", "executors.failures", "order"},
    "bad": {"tolerance"},
    "sieve": {"bad", "errors", "then", "tolerance"},
    "programs": {
        *("assembly", "copies", "coroutines", "elsewhere", "isolation", "limits", "line", "making", "modes", "plan"),
        *("rng", "seeds", "stage", "threads", "tolerance", "worker_info"),
    },
    "processes": {"executors.processes", "limits", "line", "plan", "programs", "tolerance"},
    "switching": {"executors.memory", "executors.shared", "executors.unpicklable", "line", "processes"},
    # Where an epoch is, and how to go on there.
    "reader_state": {"bad", "draws", "marks"},
    "cuts": {"marks"},
    "replay": {"errors"},
    "marks": {"draws", "errors", "scope_states"},
    "scope_states": {"draws", "rng", "seeds"},
    "state": {"draws", "epoch", "sampling"},
    "indices": {"draws", "epoch", "position", "sampling"},
    "epoch": {"bad", "draws", "position", "sampling"},
    "position": set(),
    # What comes after it.
    "upcoming": {
        *("alike", "epoch", "errors", "forecast", "looking", "order", "plan", "sampling", "seeds", "unchanged"),
    },
    "forecast": {"samplers", "sampling"},
    "alike": {"line", "looking"},
    "unchanged": {"graph", "looking", "search"},
    "sampling": {"draws", "samplers", "seeds"},
    "draws": {"seeds"},
    "samplers.elastic": {"samplers.share"},
    "samplers.share": {"samplers.permutation"},
    "samplers.permutation": set(),
    # Stages.
    "lineup": {"line", "sites"},
    "accounts": {"advice", "lineup", "stats"},
    "listening": {"accounts"},
    "stats": {"tables", "tolerance"},
    "tables": set(),
    "metrics": {"bad", "stats"},
    "waits": {"stats"},
    "advice": set(),
    "carried": {"stage"},
    "trace": {"coroutines", "errors", "line", "rng", "seeds", "stage"},
    "line": {"copies", "split", "stage"},
    "then": {"coroutines", "stage", "errors"},
    "coroutines": {"loops", "order", "rng", "seeds", "copies"},
    "staged": {"looking", "loops", "split", "stage"},
    "split": {"folders", "looking", "stage", "tensor_batches"},
    "folders": {"looking", "stage"},
    "tensor_batches": set(),
    "stage": {"looking"},
    "loops": set(),
    # Threads or processes.
    "placement.placement": {
        *(
            "accounts",
            "budget",
            "errors",
            "line",
            "placement.measuring",
            "placement.noise",
            "placement.parts",
            "placement.choice",
            "placement.model",
            "stage",
        ),
    },
    "placement.parts": {"line", "placement.model"},
    "placement.choice": {"placement.model"},
    "placement.model": set(),
    "placement.measuring": set(),
    "placement.noise": set(),
    "placement.explain": {
        "accounts",
        "line",
        "placement.parts",
        "placement.choice",
        "placement.placement",
        "placement.model",
        "tables",
    },
    "probe.command": {"probe.prediction", "tables"},
    "probe.prediction": {"placement.model"},
    "probe.process_tree": set(),
    # Who may share what.
    "isolation": {"changes", "copies", "errors", "graph", "looking", "search", "stores", "twins"},
    "changes": {"graph", "looking"},
    "stores": {"graph", "looking"},
    "copies": {"graph", "handles", "looking", "seeds", "twins"},
    "replicas": {"copies", "handles", "looking", "unsafe"},
    "twins": {"handles", "looking"},
    "handles": {"looking"},
    "search": {"graph", "looking", "unsafe"},
    "graph": set(),
    "unsafe": {"looking"},
    "looking": set(),
    # Random generators.
    "rng": {"redirect", "seeds", "torch_draws"},
    "redirect": set(),
    "seeds": set(),
    "torch_draws": set(),
    # The way to the device.
    "ahead": {"transfer"},
    "transfer": {"errors", "moving", "nested", "streams"},
    "moving": {"nested"},
    "nested": set(),
    "streams": set(),
    # Values between processes.
    "executors.processes": {
        *("executors.failures", "executors.light", "executors.mains", "executors.nursing", "executors.slots"),
        *("executors.overdue", "executors.staff", "executors.unpicklable", "executors.wire"),
    },
    "executors.staff": {
        *("executors.backlog", "executors.child", "executors.deaths", "executors.ending", "executors.failures"),
        *("executors.light", "executors.mains", "executors.nursing", "executors.overdue", "executors.ranks"),
        "executors.shared",
        *("executors.slots", "executors.wire"),
    },
    "executors.ranks": {
        *("executors.child", "executors.failures", "executors.launch", "executors.mains", "executors.nursing"),
        *("executors.page", "executors.seat", "executors.shared", "executors.wire"),
    },
    "executors.launch": {"executors.child", "executors.nursing", "executors.seat", "executors.wire"},
    "executors.child": {
        *("executors.failures", "executors.light", "executors.mains", "executors.page", "executors.seat"),
        *("executors.slots", "executors.unpicklable", "executors.wire"),
    },
    "executors.backlog": {"executors.slots", "executors.wire"},
    "executors.overdue": {"executors.backlog", "executors.page", "executors.ranks"},
    "executors.deaths": {"executors.failures", "executors.nursing"},
    "executors.ending": {"executors.nursing"},
    "executors.nursing": {"executors.nursery", "executors.seat", "executors.wire"},
    "executors.nursery": {"executors.seat", "executors.wire"},
    "executors.mains": {"executors.unpicklable"},
    "executors.unpicklable": {"executors.contents", "executors.files"},
    "executors.light": {"executors.parcel"},
    "executors.page": {"executors.wire"},
    "executors.seat": set(),
    "executors.wire": set(),
    "executors.failures": set(),
    "executors.slots": {"executors.desk", "executors.memory", "executors.parcel", "executors.shared"},
    "executors.desk": {"executors.blocks", "executors.memory", "executors.parcel"},
    "executors.shared": {
        *("executors.blocks", "executors.contents", "executors.files", "executors.memory", "executors.parcel"),
    },
    "executors.parcel": {"executors.blocks", "executors.contents", "executors.files"},
    "executors.blocks": {"executors.contents", "executors.files"},
    "executors.contents": {"executors.files"},
    "executors.files": {"executors.memory"},
    "executors.memory": set(),
    "executors": set(),
    # For stages to use; they know of no loader.
    "decode.image": {
        *("decode.fault", "decode.image_colour", "decode.image_open", "decode.image_pillow"),
        *("decode.image_request", "decode.image_torchvision"),
    },
    "decode.image_torchvision": {
        *("decode.image_open", "decode.image_pillow", "decode.image_pixels", "decode.image_request"),
    },
    "decode.image_pillow": {
        *("decode.image_colour", "decode.image_open", "decode.image_pixels", "decode.image_request"),
    },
    "decode.image_colour": {"decode.image_open", "decode.image_request"},
    "decode.image_pixels": {"decode.image_open", "decode.image_request"},
    "decode.image_open": set(),
    "decode.image_request": set(),
    "decode.video": {
        *("decode.fault", "decode.video_choice", "decode.video_open", "decode.video_pyav", "decode.video_torchcodec"),
    },
    "decode.video_choice": {"decode.fault"},
    "decode.video_open": {"decode.fault"},
    "decode.video_packets": {"decode.fault", "decode.video_choice", "decode.video_open"},
    "decode.video_pixels": set(),
    "decode.video_pyav": {
        *("decode.fault", "decode.video_choice", "decode.video_open", "decode.video_packets", "decode.video_pixels"),
    },
    "decode.video_torchcodec": {
        *("decode.fault", "decode.video_choice", "decode.video_open", "decode.video_pixels"),
    },
    "decode.fault": set(),
    "remote.fetching": {"remote.address", "remote.errors", "remote.stores"},
    "remote.stores": {"remote.address"},
    "remote.address": set(),
    "remote.errors": set(),
}
FLOOR_2 = {
    "loader": {
        *("counting", "iterators", "inline", "lanes", "inline_lane", "inline_reader", "resumed", "worker_reader"),
    },
    "iterators": {"loader_iterator", "resumed"},
    "loader_iterator": {"resumed"},
    "resumed": set(),
    "counting": {"resumed"},
    "inline": {"loader_iterator"},
    "lanes": {"iterators", "lane_epoch", "loader_iterator"},
    "lane_epoch": set(),
    "inline_epoch": set(),
    "worker_epoch": set(),
    "inline_lane": {"lanes", "inline_epoch", "inline_reader"},
    "inline_reader": {"inline_epoch", "loader_iterator"},
    "worker_reader": {"inline_epoch", "lane_epoch", "worker_epoch"},
    "safety": {"loader"},
    "probe.measured": {"loader"},
    "arguments": {"loader"},
    # Two loaders side by side.
    "comparison.compare": {
        *("comparison.fresh", "comparison.nearly", "comparison.patience", "comparison.reading", "comparison.report"),
        "comparison.run",
    },
    "comparison.run": {
        *("comparison.fingerprint", "comparison.matching", "comparison.nearly", "comparison.reading"),
        *("comparison.record", "comparison.report", "comparison.unordered", "comparison.watch"),
    },
    "comparison.command": {"comparison.compare", "comparison.fresh"},
    "comparison.fresh": {"comparison.reading", "probe.measured"},
    "comparison.reading": {
        *("comparison.arrays", "comparison.fingerprint", "comparison.indices", "comparison.leaf"),
        *("comparison.patience", "comparison.record", "comparison.watch"),
    },
    "comparison.patience": {"comparison.leaf", "comparison.record"},
    "comparison.indices": {"comparison.fingerprint", "comparison.record"},
    "comparison.unordered": {
        *("comparison.fingerprint", "comparison.leaf", "comparison.matching", "comparison.record", "comparison.report"),
    },
    "comparison.matching": {
        *("comparison.fingerprint", "comparison.leaf", "comparison.nearly", "comparison.record", "comparison.report"),
    },
    "comparison.nearly": {"comparison.leaf"},
    "comparison.report": {"comparison.watch"},
    "comparison.record": {"comparison.fingerprint"},
    "comparison.fingerprint": {"comparison.arrays", "comparison.leaf"},
    "comparison.arrays": {"comparison.leaf"},
    "comparison.watch": set(),
    "comparison.leaf": set(),
}
FLOOR_3 = {  # each knows a framework, which it imports as soon as it is imported
    "lightning": {"lightning.datamodule", "lightning.monitor"},
    "lightning.datamodule": {
        *("arguments", "lightning.fed", "lightning.leaves", "lightning.orders", "lightning.training"),
        *("lightning.wrapped", "loader"),
    },
    "lightning.wrapped": {
        *("arguments", "lightning.fed", "lightning.leaves", "lightning.orders", "lightning.training"),
    },
    "lightning.training": {"lightning.fed", "lightning.progress", "lightning.recount"},
    "lightning.fed": {"lightning.progress", "loader"},
    "lightning.progress": set(),
    "lightning.recount": set(),
    "lightning.orders": set(),
    "lightning.leaves": set(),
    "lightning.monitor": {"lightning.progress", "loader", "observe.watched"},
    "observe": {
        *("observe.log", "observe.bar", "observe.prometheus", "observe.tensorboard"),
        *("observe.marking", "observe.tracing"),
    },
    "observe.log": {"observe.watched"},
    "observe.bar": {"observe.watched"},
    "observe.prometheus": {"observe.watched"},
    "observe.tensorboard": {"observe.watched"},
    "observe.watched": set(),
    "observe.tracing": {"observe.chrome"},
    "observe.chrome": set(),
    "observe.marking": set(),
    "integrations": set(),
    "__main__": {"", "comparison.command", "probe.command"},
    "integrations.prepared": {"arguments"},
    "integrations.accelerate": {"arguments", "integrations.prepared"},
    "integrations.transformers": {"integrations.accelerate", "integrations.prepared"},
}
ROOFS = {
    "": {
        "bad",
        "comparison.compare",
        "comparison.report",
        "engine.deadlines",
        "engine.outcome",
        "tolerance",
        "loader",
        "rng",
        "safety",
        "split",
        "stage",
        "staged",
        "stats",
    },
    "engine": set(),
    "executors": set(),
    "placement": set(),
    "probe": set(),
    "comparison": set(),
    "samplers": {"samplers.elastic"},
    "decode": {"decode.fault", "decode.image", "decode.video"},
    "remote": {"remote.errors", "remote.fetching", "remote.stores"},
}  # the packages' own __init__: what they show, and nothing else

LIBRARIES = {"torch", "numpy"}  # that floors 1 and 2 may import beside the standard library
FRAMEWORKS = {"lightning", "accelerate", "transformers"}  # that floor 3 may import
EXTRAS = {"PIL", "av", "fsspec", "obstore", "torchcodec", "torchvision"}  # that they may import inside functions


def module_name(path: Path) -> str:
    """``engine.gather`` for torchstage/engine/gather.py; the package's own name for its __init__, "" for the top."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def allowed(module: str) -> set[str]:
    """The modules of torchstage that this one may import."""
    if module in ROOFS:
        return ROOFS[module]
    if module in ENGINE:
        return {f"engine.{name}" for name in ENGINE[module]}
    if module in FLOOR_1:
        return FLOOR_1[module] | set(ENGINE)
    if module in FLOOR_2:
        return FLOOR_2[module] | set(FLOOR_1) | set(ENGINE)
    if module in FLOOR_3:
        return FLOOR_3[module] | set(FLOOR_1) | {"samplers"}
    raise LookupError(f"torchstage/{module.replace('.', '/')}.py stands on no floor: add it to the tables of this file")


def imports_of(source: str, module: str) -> tuple[set[str], set[str]]:
    """What the source imports: modules of torchstage, and the top names of everything else.

    Imports inside functions and for the type checker count as well: knowing is knowing, at whatever time.
    """
    ours: set[str] = set()
    others: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"torchstage.{module}: relative import in line {node.lineno}"
            assert node.module is not None
            # `from torchstage import threads` names a module; `from torchstage.plan import Plan` names it before
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found = [name for name in names if name.removeprefix("torchstage.") in MODULES] or [node.module]
        elif isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        else:
            continue
        for name in found:
            if name.partition(".")[0] == "torchstage":
                ours.add(name.removeprefix("torchstage").removeprefix("."))
            else:
                others.add(name.partition(".")[0])
    return ours, others


def type_checking_imports_of(source: str) -> set[str]:
    """The modules of torchstage that are imported for the type checker alone."""
    blocks = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.If))
    guarded = [node for node in blocks if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"]
    return set().union(*(imports_of(ast.unparse(statement), "")[0] for node in guarded for statement in node.body))


def imports_at_once_of(source: str) -> set[str]:
    """The top names that are imported as soon as the module is."""
    tree = ast.parse(source)
    later = {id(node) for function in ast.walk(tree) if isinstance(function, FUNCTIONS) for node in ast.walk(function)}
    later |= {
        id(node)
        for guard in ast.walk(tree)
        if isinstance(guard, ast.If) and isinstance(guard.test, ast.Name) and guard.test.id == "TYPE_CHECKING"
        for node in ast.walk(guard)
    }
    at_once = [node for node in ast.walk(tree) if id(node) not in later]
    names = [alias.name for node in at_once if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in at_once if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def violations(module: str, source: str) -> list[str]:
    """A line for each import that goes up or sideways, or out to a library that does not belong there."""
    ours, others = imports_of(source, module)
    neighbours = {name for name in FLOOR_1 if "." in name and name.partition(".")[0] == module.partition(".")[0]}
    floor_2_types = type_checking_imports_of(source) & (set(FLOOR_2) if module in FLOOR_2 else neighbours)
    libraries = set() if module in ENGINE or module in ROOFS else LIBRARIES
    libraries = libraries | FRAMEWORKS if module in FLOOR_3 else libraries
    late = set() if not libraries else EXTRAS - imports_at_once_of(source)
    return [
        *(f"{module} imports torchstage.{name}" for name in sorted(ours - allowed(module) - floor_2_types)),
        *(f"{module} imports {name}" for name in sorted(others - set(sys.stdlib_module_names) - libraries - late)),
    ]


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_downward_only(module):
    assert violations(module, MODULES[module].read_text()) == []


def test_every_module_of_the_table_is_there():
    """A table that names what is gone guards nothing."""
    assert set(ENGINE) | set(FLOOR_1) | set(FLOOR_2) | set(FLOOR_3) | set(ROOFS) == set(MODULES)


def test_the_drawn_edges_make_no_circle():
    edges = {module: allowed(module) for module in MODULES}
    while edges:
        bottom = {module for module, below in edges.items() if not below & set(edges)}
        assert bottom, f"these import each other: {sorted(edges)}"
        edges = {module: below for module, below in edges.items() if module not in bottom}


@pytest.mark.parametrize(
    ("module", "source", "broken"),
    [
        ("engine.gather", "import torch", "engine.gather imports torch"),
        ("engine.gather", "from numpy.random import Generator", "engine.gather imports numpy"),
        (
            "engine.ticket",
            "from torchstage.engine.gather import finish",
            "engine.ticket imports torchstage.engine.gather",
        ),
        ("engine.pipeline", "from torchstage.errors import place", "engine.pipeline imports torchstage.errors"),
        ("errors", "from torchstage.collate import diagnose", "errors imports torchstage.collate"),
        ("errors", "from torchstage.plan import Plan", "errors imports torchstage.plan"),
        ("plan", "from torchstage import threads", "plan imports torchstage.threads"),
        ("threads", "def late():\n    from torchstage.loader import StageLoader", "threads imports torchstage.loader"),
        ("iterators", "import torchstage.loader", "iterators imports torchstage.loader"),
        ("transfer", "import PIL.Image", "transfer imports PIL"),
        ("handles", "import h5py", "handles imports h5py"),
        ("search", "from torchstage.copies import private_copy", "search imports torchstage.copies"),
        ("rng", "from torchstage.threads import private", "rng imports torchstage.threads"),
        ("", "from torchstage.engine import pipeline", " imports torchstage.engine.pipeline"),
    ],
)
def test_an_import_that_goes_up_or_sideways_is_found(module, source, broken):
    assert violations(module, source) == [broken]


def test_an_import_for_types_between_the_modules_of_floor_2_is_let_through():
    source = "if TYPE_CHECKING:\n    from torchstage.loader import StageLoader"
    assert violations("iterators", source) == []
    assert violations("errors", source) == ["errors imports torchstage.loader"]


def test_a_module_without_a_floor_is_found():
    with pytest.raises(LookupError, match=r"torchstage/engine/utils\.py stands on no floor"):
        violations("engine.utils", "")
