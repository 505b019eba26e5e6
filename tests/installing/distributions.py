"""Distributions: what pyproject.toml asks for in, what of the installed packages that leaves out, out.

So an interpreter that has everything can be made to look like one that has torchstage and one extra: the folder that
``hide`` fills goes to the front of PYTHONPATH, of child processes too, and what does not belong is not found.
"""

import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FEATURES = ("image", "video", "remote", "stateful", "lightning", "prometheus", "accelerate", "transformers")

SITE = '''\
import sys
from importlib.machinery import PathFinder

MODULES, DISTRIBUTIONS = {modules!r}, {distributions!r}


class Installed:
    """PathFinder, for which these are not there."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.partition(".")[0] in MODULES else PathFinder.find_spec(name, path, target)

    @staticmethod
    def find_distributions(*context, **options):
        for one in PathFinder.find_distributions(*context, **options):
            if one.name is None or one.name.lower().replace("_", "-").replace(".", "-") not in DISTRIBUTIONS:
                yield one

    @staticmethod
    def invalidate_caches():
        PathFinder.invalidate_caches()


sys.meta_path[sys.meta_path.index(PathFinder)] = Installed
'''


def wanted(extras: Iterable[str]) -> set[str]:
    """The names of all distributions that an installation with these extras has, with what they ask for in turn."""
    asked = [*PROJECT["dependencies"], *(line for extra in extras for line in PROJECT["optional-dependencies"][extra])]
    found: set[tuple[str, str]] = set()
    to_do = [Requirement(line) for line in asked]
    while to_do:
        one = to_do.pop()
        for extra in ("", *one.extras):
            name = canonicalize_name(one.name)
            if (name, extra) in found:
                continue
            found.add((name, extra))
            try:
                requires = [Requirement(line) for line in metadata.requires(name) or []]
            except metadata.PackageNotFoundError:  # it is not installed: another one does instead, or the job will tell
                continue
            to_do += [each for each in requires if each.marker is None or each.marker.evaluate({"extra": extra})]
    return {name for name, _ in found}


def hide(folder: Path, extras: Iterable[str]) -> None:
    """Fill the folder so that all that does not belong to an installation with these extras is not there."""
    kept = {*wanted(extras), "torchstage"}
    names = {canonicalize_name(one.name) for one in metadata.distributions()}
    modules = {
        module
        for module, distributions in metadata.packages_distributions().items()
        if not kept & {canonicalize_name(name) for name in distributions}
    }
    text = SITE.format(modules=sorted(modules - {"torchstage"}), distributions=sorted(names - kept))
    (folder / "sitecustomize.py").write_text(text)
