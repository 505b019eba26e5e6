"""What these tests share: a process that is afterwards what it was before."""

import pytest

pytest.importorskip("lightning")

from frameworks.conftest import as_before

__all__ = ["as_before"]
