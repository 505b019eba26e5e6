"""The site of docs/: it is built without a warning, nothing in it leads astray, and it has every public name.

Links in the sources, as GitHub shows them, are those of ``test_docs``.
"""

import html.parser
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from torch.utils.data import DataLoader

pytest.importorskip("mkdocs")
griffe = pytest.importorskip("griffe")

ROOT = Path(__file__).resolve().parent.parent
API = (ROOT / "docs/api.md").read_text()
MODULES = ("torchstage", *(f"torchstage.{name}" for name in ["decode", "lightning", "observe", "remote", "samplers"]))
FETCHED = {"img": "src", "link": "href", "script": "src", "source": "src"}  # what a browser asks for unasked


@dataclass(frozen=True)
class Public:
    module: str
    name: str

    @property
    def value(self) -> Any:
        return getattr(importlib.import_module(self.module), self.name)

    @property
    def paths(self) -> set[str]:
        """How the page may name it. A function may be called as its module is: then by where it is defined."""
        return {f"{self.module}.{self.name}", f"{self.value.__module__}.{self.name}"}

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def public_names() -> Iterator[Public]:
    """``__all__`` of what is public; and of the integrations, what the page about them imports."""
    for module in MODULES:
        yield from (Public(module, name) for name in importlib.import_module(module).__all__)
    told = re.findall(r"from (torchstage\.integrations\.\w+) import (\w+)", (ROOT / "docs/frameworks.md").read_text())
    yield from (Public(module, name) for module, name in sorted(set(told)))


PUBLIC = list(public_names())


def test_the_page_of_the_api_has_every_public_name_and_no_other():
    told = re.findall(r"^::: (\S+)$", API, re.MULTILINE)
    missing = [str(public) for public in PUBLIC if not public.paths & set(told)]
    assert not missing
    assert len(told) == len(PUBLIC), sorted(set(told) - set().union(*(public.paths for public in PUBLIC)))


def test_of_the_integrations_both_frameworks_are_public():
    assert {public.module.rpartition(".")[2] for public in PUBLIC} >= {"accelerate", "transformers"}


@pytest.fixture(scope="module")
def package() -> Any:
    return griffe.load("torchstage", search_paths=[ROOT], allow_inspection=False)


@pytest.mark.parametrize("public", PUBLIC, ids=str)
def test_the_docstring_of_a_public_name_says_what_it_takes(public, package):
    found = package[f"{public.module}.{public.name}".removeprefix("torchstage.")]
    if found.is_module:
        found = found[public.name]
    words = words_of(found)
    assert words, "it has no docstring"
    untold = [name for name in taken_by(public) if not re.search(rf"\b{name}\b", words)]
    assert not untold


def words_of(found: Any) -> str:
    """Its docstring, and those of its fields with their names."""
    fields = [member for member in found.members.values() if member.is_attribute and member.docstring]
    own = [found.docstring.value] if found.docstring else []
    return "\n".join([*own, *(f"{one.name}: {one.docstring.value}" for one in fields)])


def taken_by(public: Public) -> list[str]:
    """The arguments that it has to explain: not those that are explained where they come from."""
    from torchstage import StageLoader

    known: dict[str, Any] = {"StageLoader": DataLoader, "StageDataModule": StageLoader}
    elsewhere = {*inspect.signature(known[public.name]).parameters} if public.name in known else set()
    if is_told_by_its_base(public.value):
        return []
    try:
        taken = inspect.signature(public.value).parameters
    except ValueError:  # an exception that takes what any exception takes
        return []
    return [name for name in taken if name not in elsewhere]


def is_told_by_its_base(value: Any) -> bool:
    """Whether it is a class that is made as another public one is."""
    is_class = isinstance(value, type) and "__init__" not in vars(value)
    return is_class and any(public.value in value.__mro__[1:] for public in PUBLIC if isinstance(public.value, type))


@dataclass
class Page(html.parser.HTMLParser):
    """What a page of the site has, and where it leads."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        if name := told.get("id"):
            self.ids.add(name)
        if tag == "a" and told.get("href"):
            self.links.append(told["href"] or "")
        if tag in FETCHED and (target := told.get(FETCHED[tag])) and told.get("rel") != "canonical":
            self.fetched.append(target)


def page_of(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text())
    return page


@pytest.mark.site
def test_the_site_is_built_and_nothing_in_it_leads_astray(tmp_path):
    build(tmp_path)
    pages = {path: page_of(path) for path in tmp_path.rglob("*.html") if path.name != "404.html"}
    assert {f"{path.stem}.html" for path in (ROOT / "docs").glob("*.md")} <= {path.name for path in pages}
    astray = [
        f"{path.name}: {link}" for path, page in pages.items() for link in page.links if not leads(path, link, pages)
    ]
    assert not astray
    from_elsewhere = [link for page in pages.values() for link in page.fetched if "//" in link]
    assert not from_elsewhere
    missing = [
        link for path, page in pages.items() for link in page.fetched if not (path.parent / plain(link)).exists()
    ]
    assert not missing
    named = pages[tmp_path / "api.html"].ids
    assert not [str(public) for public in PUBLIC if not public.paths & named]
    members = re.findall(r"^::: (\S+)\n    options:\n      members:\n((?: +- \w+\n)+)", API, re.MULTILINE)
    assert members
    wanted = {f"{path}.{name}" for path, names in members for name in re.findall(r"- (\w+)", names)}
    assert wanted <= named


def build(folder: Path) -> None:
    """Build the site; whatever it would fetch, it would not get."""
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    environment = {**os.environ, **nowhere, "no_proxy": "", "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr


def plain(link: str) -> str:
    return unquote(urlsplit(link).path)


def leads(page: Path, link: str, pages: dict[Path, Page]) -> bool:
    """Whether a link of this page leads somewhere. Other hosts are not asked."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return False
    return not parts.fragment or target not in pages or unquote(parts.fragment) in pages[target].ids


@pytest.mark.parametrize(
    ("link", "is_right"),
    [
        ("b.html", True),
        ("b.html#here", True),
        ("b.html#nowhere", False),
        ("c.html", False),
        ("#here", False),
        ("https://a.host/x", True),
    ],
)
def test_a_link_that_leads_nowhere_is_found(tmp_path, link, is_right):
    for name in ("a", "b"):
        (tmp_path / f"{name}.html").write_text(f'<p id="{"here" if name == "b" else "there"}">')
    pages = {path: page_of(path) for path in tmp_path.glob("*.html")}
    assert leads(tmp_path / "a.html", link, pages) is is_right
