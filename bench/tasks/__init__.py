"""The tasks of `egeria bench`: the paper's seven, one with its long schedule, fine-tuning, and a small one."""

from __future__ import annotations

import dataclasses
import importlib
import pathlib
from collections.abc import Mapping
from typing import Any

from bench.harness.errors import BenchError
from bench.harness.task import Task

# The module of each task, and the class in it. They are imported when asked for, since some need packages that others
# do not.
_TASKS = {
    "resnet56-cifar10": ("resnet56_cifar10", "ResNet56Cifar10"),
    "resnet50-imagenette": ("resnet50_imagenette", "ResNet50Imagenette"),
    "mobilenetv2-imagenette": ("mobilenetv2_imagenette", "MobileNetV2Imagenette"),
    "deeplabv3-camvid": ("deeplabv3_camvid", "DeepLabV3CamVid"),
    "transformer-base-multi30k": ("transformer_multi30k", "TransformerBase"),
    "transformer-tiny-multi30k": ("transformer_multi30k", "TransformerTiny"),
    "bert-squad": ("bert_squad", "BertSquad"),
    "resnet20-long": ("resnet20_cifar10_long", "ResNet20Cifar10Long"),
    "minilm-classify": ("minilm_classify", "MiniLmClassify"),
    "minilm-squad": ("minilm_squad", "MiniLmSquad"),
    "lite0-cifar10": ("lite0_cifar10", "Lite0Cifar10"),
    "lite0-camvid": ("lite0_camvid", "Lite0CamVid"),
    "digits": ("digits", "Digits"),
}

NAMES = tuple(_TASKS)


def create(name: str, profile: str, data: pathlib.Path | None, settings: Mapping[str, Any] = {}) -> Task:
    """A task, whose data has not been read yet. `settings`: values that differ from the profile's.

    Raises:
      BenchError: [UNKNOWN_TASK], [UNKNOWN_PROFILE], [UNKNOWN_SETTING].
    """
    kind = task_class(name)
    if profile not in kind.profiles:
        raise BenchError("UNKNOWN_PROFILE", f"{name} has no profile {profile!r}; it has: {', '.join(kind.profiles)}")
    chosen = kind.profiles[profile]
    if unknown := settings.keys() - chosen.settings.keys():
        raise BenchError(
            "UNKNOWN_SETTING", f"{name} has no setting {min(unknown)!r}; it has: {', '.join(chosen.settings)}"
        )
    return kind(dataclasses.replace(chosen, settings={**chosen.settings, **settings}), data)


def task_class(name: str) -> type[Task]:
    """The class of a task. Raises BenchError [UNKNOWN_TASK]."""
    if name not in _TASKS:
        raise BenchError("UNKNOWN_TASK", f"there is no task {name!r}; there are: {', '.join(NAMES)}")
    module, kind = _TASKS[name]
    return getattr(importlib.import_module(f"bench.tasks.{module}"), kind)
