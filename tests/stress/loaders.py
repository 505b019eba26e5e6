"""Loaders: what the model knows of a loader in, the loader out."""

from typing import Any

import torch
from torch.utils.data import TensorDataset

from tests.stress.model import Spec, sampler_of
from tests.stress.parts import (
    STAGES,
    Listed,
    Moody,
    MoodyAtOnce,
    MoodyFetched,
    MoodyStaged,
    Shares,
    SharesWithState,
    below_zero,
    moody_of,
)
from tests.stress.program import How
from torchstage import Stage, StageLoader

DATASETS: dict[str, Any] = {"plain": Moody, "at once": MoodyAtOnce, "staged": MoodyStaged, "fetched": MoodyFetched}


def dataset_of(spec: Spec, version: int) -> Any:
    if spec.kind == "tensors":
        places = torch.arange(len(spec.moods))
        return TensorDataset(places, 2 * places)
    if spec.is_iterable:
        dataset: Any = (Shares if spec.kind == "shares" else SharesWithState)(len(spec.moods))
    else:
        dataset = DATASETS[spec.kind](spec.moods, draws=spec.draws, is_slow=spec.is_slow)
    moody_of(dataset).version = version
    return dataset


def loader_of(spec: Spec, how: How, version: int, executor: Any) -> StageLoader[Any]:
    dataset = dataset_of(spec, version)
    stages = [
        Stage(
            STAGES[kind](number, spec.stage_bad_at),
            name=f"{kind}{number}",
            executor=executor if where == "own" else where,
            concurrency=concurrency,
        )
        for number, (kind, where, concurrency) in enumerate(spec.stages)
    ]
    given: dict[str, Any] = {"batch_size": spec.batch_size, "drop_last": spec.drop_last, "seed": spec.seed}
    given["generator"] = torch.Generator().manual_seed(spec.seed)
    if spec.order == "shuffled":
        given["shuffle"] = True
    elif spec.order == "listed":
        given["sampler"] = list(spec.listed)
    elif spec.order == "batches":
        del given["batch_size"], given["drop_last"]
        given["batch_sampler"] = [list(batch) for batch in spec.batches]
    elif spec.order in ("distributed", "elastic"):
        given["sampler"] = sampler_of(spec, dataset)
    if spec.collate == "own" and spec.is_batched:
        given["collate_fn"] = Listed(spec.collate_bad_at)
    if not spec.is_iterable:
        given |= {"max_bad_samples": spec.max_bad}
        given["on_error"] = below_zero if spec.on_error == "function" else spec.on_error
    else:
        given["lanes"] = spec.lanes
    if how.num_workers:
        given |= {"prefetch_factor": how.prefetch_factor, "persistent_workers": how.persistent}
        given |= {"prefetch_epochs": how.prefetch_epochs, "worker_method": how.method}
    return StageLoader(
        dataset,
        num_workers=how.num_workers,
        stages=stages,
        isolation=how.isolation,  # type: ignore[arg-type]
        prefetch_bytes=how.prefetch_bytes,
        timeout=how.timeout,
        device=how.device,
        in_order=spec.in_order,
        **given,
    )
