"""Transfer: a collated batch in, the same batch in pinned memory out.

Guarantees: types and nesting are torch's: its own ``pin_memory`` function does the work.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data._utils.pin_memory import pin_memory


def pinned(device_type: str | None) -> Callable[[Any, Sequence[Any]], Any]:
    """The stage that copies a batch into pinned memory, for the accelerator of that type."""
    return lambda batch, indices: pin_memory(batch, device_type)
