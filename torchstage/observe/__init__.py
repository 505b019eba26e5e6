"""Observe: loaders in; what they do, in the tools that are watched anyway, out.

Guarantees: importing it needs nothing beside torch and numpy; what is written by each part is in ``docs/observe.md``
and, of traces and ranges, in ``docs/trace.md``.
"""

from torchstage.metrics import as_dict, metrics_of
from torchstage.observe.bar import progress
from torchstage.observe.log import Log, log_line
from torchstage.observe.marking import Ranges, ranges
from torchstage.observe.prometheus import PrometheusCollector
from torchstage.observe.tensorboard import TensorBoard
from torchstage.observe.tracing import Trace, trace

__all__ = [
    "Log",
    "PrometheusCollector",
    "Ranges",
    "TensorBoard",
    "Trace",
    "as_dict",
    "log_line",
    "metrics_of",
    "progress",
    "ranges",
    "trace",
]
