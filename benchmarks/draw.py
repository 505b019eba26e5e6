"""Draw: `benchmarks/results/` in; all pages, pictures and the table of README.md out.

python -m benchmarks.draw
"""

from __future__ import annotations

import json

from benchmarks import plots, profiles, readme, table, where_we_win
from benchmarks.summary import RESULTS

DOCS = readme.PATH.parent / "docs"


def main() -> None:
    plots.main()
    (DOCS / "benchmarks.md").write_text(table.page())
    (DOCS / "profiles.md").write_text(profiles.page(json.loads((RESULTS / "ceiling.json").read_text())))
    readme.main()
    where_we_win.main()


if __name__ == "__main__":
    main()
