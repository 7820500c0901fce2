"""ResNet-56 on CIFAR-10."""

from __future__ import annotations

from bench.harness.task import Profile
from bench.tasks.resnet_cifar10 import ResNetCifar10


class ResNet56Cifar10(ResNetCifar10):
    """The profile "small" has all 56 layers, and trains on a part of the images at half the resolution."""

    name = "resnet56-cifar10"
    title = "ResNet-56, CIFAR-10"
    profiles = {
        "small": Profile(
            steps=1_600,
            batch_size=32,
            evaluations=10,
            settings={
                "blocks": 9,
                "width": 16,
                "size": 16,
                "training": 5_000,
                "testing": 5_000,
                "rate": 0.1,
                "weight_decay": 5e-4,
                "shift": 2,
            },
        ),
        "paper": Profile(
            steps=78_000,
            batch_size=128,
            evaluations=100,
            settings={
                "blocks": 9,
                "width": 16,
                "size": 32,
                "training": 50_000,
                "testing": 10_000,
                "rate": 0.1,
                "weight_decay": 1e-4,
                "shift": 4,
            },
        ),
    }
    # Three blocks each, of about the same time.
    modules = staticmethod(
        lambda model: [
            [model.stem, *model.stages[0][:3]],
            *(
                [*stage[first : first + 3]]
                for index, stage in enumerate(model.stages)
                for first in (0, 3, 6)
                if index + first > 0
            ),
            model.head,
        ]
    )
