"""A task is a model, its data and its schedule. Everything else is the harness's."""

from __future__ import annotations

import abc
import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate


@dataclasses.dataclass(frozen=True)
class Quality:
    """The one number by which runs of a task are compared.

    Attributes:
      name: its key in Task.scores().
      unit: of what reports print, such as "points".
      higher_is_better: False for losses.
      scale: units per unit of scores(): 100 makes points of a share.
    """

    name: str
    unit: str
    higher_is_better: bool
    scale: float = 1.0

    def gain(self, value: float, over: float) -> float:
        """How much better `value` is than `over`, in `unit`; negative where it is worse."""
        return self.scale * (value - over) * (1 if self.higher_is_better else -1)


@dataclasses.dataclass(frozen=True)
class Profile:
    """How long a task trains, and on what.

    Attributes:
      steps: optimizer steps of a plain run.
      batch_size: samples of one step, over all ranks.
      evaluations: of a run, evenly spread over its steps, the last one at its end.
      settings: of the task: sizes of the model and of the data, learning rate, and so on.
    """

    steps: int
    batch_size: int
    evaluations: int
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Task(abc.ABC):
    """One row of the benchmark. A subclass is small: the loop around it is harness.rank's.

    Attributes:
      name: as the command line has it.
      title: of the report.
      quality: what runs are compared by.
      profiles: "small": about two and a half minutes for a plain run of two ranks on two cores, and far enough from the
        noise that freezing half of the layer modules at a tenth of the training loses clearly. "paper": at full
        width, with schedules as in the paper, for GPUs.
      modules: how egeria.attach() is to cut the model.
      pretrained: whether the network starts from weights that were trained elsewhere.
      layer_rates: whether its optimizer has one group of parameters for each layer module, in forward order, without
        those that the script has frozen.
      variants: so many fixed variants of each sample stand for random augmentation in dataset(); None: it has none.
      too_early: the negative control: which share of the layer modules is frozen at which share of the steps. It has
        to lose.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    quality: ClassVar[Quality]
    profiles: ClassVar[Mapping[str, Profile]]
    modules: ClassVar[Any] = None
    pretrained: ClassVar[bool] = False
    layer_rates: ClassVar[bool] = False
    variants: ClassVar[int | None] = None
    too_early: ClassVar[tuple[float, float]] = (0.5, 0.1)

    def __init__(self, profile: Profile, data: pathlib.Path | None):
        self.profile = profile
        self.settings = profile.settings
        self.data = data

    @abc.abstractmethod
    def load(self) -> None:
        """Reads the data. Raises BenchError [NO_DATA] where it is not there."""

    @property
    @abc.abstractmethod
    def training_samples(self) -> int:
        """The size of the training set."""

    @property
    @abc.abstractmethod
    def validation_samples(self) -> int:
        """The number of samples that evaluate() can be asked about."""

    @abc.abstractmethod
    def build_model(self) -> nn.Module:
        """The network, initialised from torch's global generator."""

    @abc.abstractmethod
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer, at the peak learning rate."""

    @abc.abstractmethod
    def rate(self, progress: float) -> float:
        """Learning rate at `progress` (0 <= progress < 1) of the schedule, as a factor of the peak."""

    def dataset(self) -> Sequence[Any]:
        """Returns the samples that a DataLoader makes batches of for loss(): indices, unless a task says otherwise.
        Augmentation in here is of torch's generator, and needs `variants`."""
        return range(self.training_samples)

    def batch(self, samples: Tensor) -> Any:
        """Makes the batch of these training samples as a DataLoader would."""
        dataset = self.dataset()
        return default_collate([dataset[index] for index in samples.tolist()])

    @abc.abstractmethod
    def loss(self, model: nn.Module, batch: Any, device: torch.device) -> Tensor:
        """Mean loss of a batch of training samples; random augmentation is of torch's generator."""

    @abc.abstractmethod
    def evaluate(self, model: nn.Module, samples: Tensor, device: torch.device) -> Tensor:
        """Sums over these validation samples, 1-d float64, that add up over ranks. No gradients are recorded."""

    @abc.abstractmethod
    def scores(self, sums: Tensor) -> dict[str, float]:
        """Numbers of the whole validation set from the sums over all of it; quality.name is one of them."""

    def checksum(self) -> int:
        """A checksum of data that is computed when it is read: the ranks compare theirs."""
        return 0

    def order(self, epoch: int, generator: torch.Generator) -> Tensor:
        """Indices of the training samples in the order of an epoch; the same on every rank."""
        return torch.randperm(self.training_samples, generator=generator)


def step_decay(*milestones: float, factor: float = 0.1, warm_up: float = 0.0) -> Callable[[float], float]:
    """A rate that falls by `factor` at each of the milestones, after a linear rise until `warm_up`."""

    def rate(progress: float) -> float:
        risen = min(1.0, (progress + 1e-3) / warm_up) if warm_up > 0 else 1.0
        return risen * factor ** sum(progress >= milestone for milestone in milestones)

    return rate
