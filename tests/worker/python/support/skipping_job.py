"""Trains each rank on its own samples under DistributedDataParallel, with skipped layers and without; compares."""

from __future__ import annotations

import torch
import torch.distributed as dist
from skipped_models import RESNET_LAYERS, images, resnet, square
from skipping_runs import DictStore, counters_of, epochs, skipper_of
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from egeria.freeze.freezer import Freezer
from egeria.freeze.replicas import Replicas
from egeria.model.modules import partition
from support.ending import end_process_group

PREFIX = 2
FREEZE, UNFREEZE, REFREEZE = 4, 14, 18  # steps


def train(cached: bool) -> tuple[dict[str, Tensor], int]:
    """Final weights, and how many passes were skipped."""
    torch.manual_seed(0)
    model = resnet().train()
    wrapped = DistributedDataParallel(model)
    layers = partition(model, RESNET_LAYERS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    freezer, replicas = Freezer(layers, [optimizer]), Replicas(wrapped)
    at_hand: list[list[int]] = []
    skipper, skipped = None, 0
    mine = epochs(11, 4, 10, lambda ids: images([2 * sample + dist.get_rank() for sample in ids]))
    for step, (ids, args, kwargs) in enumerate(mine):
        if step in (FREEZE, UNFREEZE, REFREEZE):
            if skipper is not None:
                skipped += counters_of(skipper)["passes_skipped"]
                skipper.close()
                skipper = None
            prefix = 0 if step == UNFREEZE else PREFIX
            freezer.apply(prefix)
            replicas.pack_buffers(layers[:prefix]).share()
            replicas.rebuild().keep()
            if cached and prefix > 0:
                skipper = skipper_of(model, layers, prefix, DictStore(), lambda batch: at_hand[-1])
        at_hand.append(ids)
        loss = square(wrapped(*args, **kwargs))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert skipper is None or skipper.refusal is None, skipper.refusal
    skipped += counters_of(skipper)["passes_skipped"] if skipper is not None else 0
    return {name: value.detach().clone() for name, value in model.state_dict().items()}, skipped


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    plain, _ = train(cached=False)
    weights, skipped = train(cached=True)
    assert skipped >= 8, skipped
    for name, value in plain.items():
        assert torch.equal(value, weights[name]), name
    end_process_group()


if __name__ == "__main__":
    main()
