"""Fetch a release's source package from pip's own index: `python fetch_sources.py pillow 13.0.0 FILE`.

`pip download` would build the package to learn its dependencies; this only finds and fetches it.
"""

import sys
from pathlib import Path

from pip._internal.cli.cmdoptions import make_target_python
from pip._internal.commands.download import DownloadCommand
from pip._vendor.packaging.specifiers import SpecifierSet


def main(name: str, version: str, target: str) -> None:
    command = DownloadCommand("download", "fetch the sources")
    options, _ = command.parse_args(["--no-deps", "--no-binary", name, f"{name}=={version}"])
    with command.main_context():
        session = command.get_default_session(options)
        finder = command._build_package_finder(options, session, make_target_python(options))
        found = finder.find_best_candidate(name, SpecifierSet(f"=={version}")).best_candidate
        if found is None:
            raise SystemExit(f"no source package of {name} {version}")
        response = session.get(found.link.url_without_fragment)
        response.raise_for_status()
        Path(target).write_bytes(response.content)


if __name__ == "__main__":
    main(*sys.argv[1:])
