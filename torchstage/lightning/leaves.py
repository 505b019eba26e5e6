"""Leaves: a dataset or loader, or lists, tuples and mappings of them, in; the same with each of them replaced, out.

Guarantees: only lists, tuples and mappings are looked into, each once, in their order.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast


def leaves(tree: Any, name: str, replace: Callable[[Any], Any]) -> Any:
    """Raises TypeError for a leaf that cannot be a dataset or a loader."""
    if isinstance(tree, Mapping):
        mapping = cast(Mapping[Any, Any], tree)
        return {key: leaves(value, f"{name}[{key!r}]", replace) for key, value in mapping.items()}
    if isinstance(tree, list | tuple):
        return [leaves(value, f"{name}[{at}]", replace) for at, value in enumerate(cast(list[Any], tree))]
    if not hasattr(tree, "__getitem__") and not hasattr(tree, "__iter__"):
        raise TypeError(
            f"torchstage.lightning: {name} is a {type(tree).__name__}, which has no samples. A list, a tuple or a "
            "mapping is taken for several datasets; give a list of samples as a Dataset of its own."
        )
    return replace(tree)
