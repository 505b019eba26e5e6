"""Transfer: a collated batch in, the same batch in pinned memory out.

Guarantees: types and nesting are torch's: its own ``pin_memory`` function does the work.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch.utils.data._utils.pin_memory as torch_pinning

_pin_memory: Callable[[Any, str | None], Any] = vars(torch_pinning)["pin_memory"]  # torch leaves it untyped


def pinned(device_type: str | None) -> Callable[[Any, Sequence[Any]], Any]:
    """The stage that copies a batch into pinned memory, for the accelerator of that type."""
    return lambda batch, indices: _pin_memory(batch, device_type)
