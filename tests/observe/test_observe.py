"""Observe: it is there with torch and numpy alone, and tells the ranks of a real process group apart."""

import json
import os
import subprocess
import sys

import pytest

MAX_SECONDS = 100.0

ALONE = """
import sys

for name in ("tqdm", "tensorboard", "tensorboardX", "prometheus_client", "lightning", "google"):
    sys.modules[name] = None

from torchstage import StageLoader, observe
from torchstage.observe import *


class Writer:
    num = 0

    def add_scalar(self, *_):
        self.num += 1

    add_text = add_scalar


loader, writer = StageLoader(list(range(8)), num_workers=1), Writer()
with loader:
    list(loader)
TensorBoard(writer).write(loader, 1)
Log(every_seconds=0).step(loader)
assert writer.num and as_dict(loader.stats()) and metrics_of(loader.stats())
for make in (lambda: progress(loader), lambda: PrometheusCollector(loader)):
    try:
        make()
    except ImportError as error:
        print(error)
"""

OF_A_RANK = """
import json
import sys

import torch.distributed as dist

from torchstage import StageLoader, observe

loader = StageLoader(list(range(8)), num_workers=1)
collector = observe.PrometheusCollector(loader)


def told():
    labels = {sample.labels["rank"] for family in collector.collect() for sample in family.samples}
    return [observe.as_dict(loader.stats())["rank"], *labels, observe.log_line(loader.stats()).partition(":")[0]]


before = told()
rank = int(sys.argv[2])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
inside = told()
dist.barrier()
dist.destroy_process_group()
print(json.dumps([before, inside]))
"""


def test_torch_and_numpy_are_all_that_it_needs():
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert "pip install tqdm" in first
    assert "pip install 'torchstage[prometheus]'" in second


@pytest.mark.distributed
def test_each_rank_says_which_it_is_before_and_inside_of_a_process_group(tmp_path):
    pytest.importorskip("prometheus_client")
    logs, scripts = [tmp_path / f"log_{rank}" for rank in range(2)], []
    try:
        for rank, path in enumerate(logs):
            with path.open("w") as log:
                command = [sys.executable, "-c", OF_A_RANK, str(tmp_path / "meeting"), str(rank)]
                known = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"}
                scripts.append(subprocess.Popen(command, env=known, stdout=log, stderr=log, stdin=subprocess.DEVNULL))
        codes = [script.wait(MAX_SECONDS) for script in scripts]
    finally:
        for script in scripts:
            script.kill()
            script.wait()
    said = [path.read_text() for path in logs]
    assert codes == [0, 0], "".join(said)
    for rank, text in enumerate(said):
        assert json.loads(text.splitlines()[-1]) == [[rank, str(rank), f"rank {rank}"]] * 2
