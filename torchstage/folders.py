"""Folders: a torchvision ``DatasetFolder`` or ``ImageFolder`` in, the stages of its samples out.

fetch: the file's bytes. decode: what the dataset's own loader makes of the file. transform, target_transform: as they
are. A loader that is not torchvision's own is given the path, in "decode".

Guarantees: torchvision is not imported here; results, errors and warnings are those of ``dataset[index]``; every
attribute of the dataset is read when a sample needs it.
"""

import io
import sys
from functools import partial
from typing import Any

from torchstage.looking import type_of
from torchstage.stage import Stage

MODULE = "torchvision.datasets.folder"


def folder_stages(dataset: Any) -> tuple[Stage, ...]:
    """The stages, or none if it is something else, or has a ``__getitem__`` other than torchvision's."""
    folder = getattr(sys.modules.get(MODULE), "DatasetFolder", None)
    if folder is None or not isinstance(dataset, folder):
        return ()
    if not _is_torchvisions(type_of(dataset).__getitem__, "DatasetFolder.__getitem__"):
        return ()
    return (
        Stage(partial(_fetch, dataset), "fetch"),
        Stage(partial(_decode, dataset), "decode"),
        Stage(partial(_transform, dataset), "transform"),
        Stage(partial(_target_transform, dataset), "target_transform"),
    )


def _fetch(dataset: Any, index: Any) -> tuple[Any, ...]:
    """Path and target of the sample, and the bytes of its file if the loader can do with these."""
    path, target = dataset.samples[index]
    if not _decodes_bytes(dataset.loader):
        return path, target
    with open(path, "rb") as file:  # noqa: PTH123 - a path of the user's own, whatever its type
        return path, target, file.read()


def _decode(dataset: Any, fetched: tuple[Any, ...]) -> tuple[Any, Any]:
    path, target, *rest = fetched
    if rest and _decodes_bytes(dataset.loader):
        from PIL import Image

        try:
            image = Image.open(io.BytesIO(rest[0])).convert("RGB")
        except Exception:
            pass  # the loader itself says it with the file's name, or knows better
        else:
            return image, target
    return dataset.loader(path), target


def _transform(dataset: Any, sample: tuple[Any, Any]) -> tuple[Any, Any]:
    image, target = sample
    return (image if dataset.transform is None else dataset.transform(image)), target


def _target_transform(dataset: Any, sample: tuple[Any, Any]) -> tuple[Any, Any]:
    image, target = sample
    return image, (target if dataset.target_transform is None else dataset.target_transform(target))


def _decodes_bytes(loader: Any) -> bool:
    """Whether it is torchvision's own way to open an image with Pillow: only then we know what it does with a file."""
    module: Any = sys.modules.get(MODULE)
    if module is None or not _is_torchvisions(module.pil_loader, "pil_loader"):
        return False
    if loader is module.pil_loader:
        return True
    return (
        loader is module.default_loader
        and _is_torchvisions(loader, "default_loader")
        and sys.modules["torchvision"].get_image_backend() == "PIL"
    )


def _is_torchvisions(function: Any, name: str) -> bool:
    """Whether this is the function of that name in torchvision's module, not something that was put in its place."""
    code = getattr(function, "__code__", None)
    return (
        code is not None
        and code.co_qualname == name
        and getattr(function, "__globals__", {}).get("__name__") == MODULE
        and not hasattr(function, "__wrapped__")
    )
