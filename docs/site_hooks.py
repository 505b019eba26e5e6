"""Site hooks: pages that link to files beside docs/, as GitHub shows them, in; a site in which these links hold, out.

Guarantees: nothing is fetched; a link to a file that is not there stays as it is, so that a strict build fails.

CHANGELOG.md and CONTRIBUTING.md become pages of the site. What pages link to outside of docs/, examples for instance,
is copied under the same path.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
BESIDE = ("CHANGELOG.md", "CONTRIBUTING.md")  # pages of the site
LINK = re.compile(r"(?<=\]\()(?P<path>[^)#\s:]+)(?=[)#])")


def on_files(files: Files, config: Any) -> Files:
    """Take in what lies beside docs/: pages, and what pages link to."""
    for name in BESIDE:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    for page in list(files.documentation_pages()):
        for path in sorted(outside(page.content_string)):
            if files.get_file_from_path(path) is None:
                files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as the site has them: it knows docs/ and what was taken in by the same root."""
    is_beside = page.file.src_uri in BESIDE
    return LINK.sub(lambda found: inside(found["path"], is_beside=is_beside), markdown)


def outside(markdown: str) -> set[str]:
    """The files beside docs/ that a page of docs/ links to, as paths from the top."""
    leading = (found["path"][3:] for found in LINK.finditer(markdown) if found["path"].startswith("../"))
    return {path for path in leading if (ROOT / path).is_file()}


def inside(path: str, *, is_beside: bool) -> str:
    """Where the site has what this link of a page leads to."""
    if is_beside:
        return path.removeprefix("docs/")
    return "index.md" if path == "../README.md" else path.removeprefix("../") if is_taken_in(path) else path


def is_taken_in(path: str) -> bool:
    return path.startswith("../") and (ROOT / posixpath.normpath(path[3:])).is_file()
