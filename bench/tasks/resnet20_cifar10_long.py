"""ResNet-20 on CIFAR-10 for many epochs, with rates that drop tenfold at half and at three quarters as in the paper."""

from __future__ import annotations

from bench.harness.task import Profile
from bench.tasks.resnet_cifar10 import ResNetCifar10

_SETTINGS = {
    "blocks": 3,
    "width": 16,
    "size": 16,
    "training": 5_000,
    "testing": 5_000,
    "rate": 0.2,
    "weight_decay": 5e-4,
    "shift": 2,
}


class ResNet20Cifar10Long(ResNetCifar10):
    """The profile "small" trains for 150 epochs on a tenth of the images at half the resolution.

    The profile "smoke" takes seconds and shows nothing but that the harness works.
    """

    name = "resnet20-long"
    title = "ResNet-20, CIFAR-10, 150 epochs"
    profiles = {
        "smoke": Profile(
            steps=96, batch_size=32, evaluations=4, settings={**_SETTINGS, "width": 4, "training": 256, "testing": 128}
        ),
        "small": Profile(steps=5_850, batch_size=128, evaluations=50, settings=_SETTINGS),  # 39 steps an epoch
        "paper": Profile(
            steps=78_000,
            batch_size=128,
            evaluations=100,
            settings={**_SETTINGS, "size": 32, "training": 50_000, "testing": 10_000, "weight_decay": 1e-4, "shift": 4},
        ),
    }
    # One block each; the first has the stem.
    modules = staticmethod(
        lambda model: [
            [model.stem, model.stages[0][0]],
            *([block] for index, stage in enumerate(model.stages) for block in stage[1 if index == 0 else 0 :]),
            [model.head],
        ]
    )
