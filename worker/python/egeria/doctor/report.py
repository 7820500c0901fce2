"""A Report says what egeria.doctor() has found: as an object, as JSON, and in words."""

from __future__ import annotations

import dataclasses
import json

# Where a layer module's reference model would run.
CONTROLLER, WORKER, UNKNOWN = "controller", "worker", "unknown"


@dataclasses.dataclass(frozen=True)
class BackendReport:
    """One way to run a layer module's reference model on the controller, on one thread of this machine.

    Attributes:
      name: "int8", "int8/f32-residual", "bf16", "prepacked" (float32) or "aten" (float32, operator by operator).
      ratio: of its time to that of "aten"; None where it cannot run the module.
      noise: SP loss between its activations and those of "aten". The controller takes the fastest backend whose noise
        is under a tenth of the plasticity that it reads, and at first one that is as exact as float32.
      refusal: why it cannot run the module.
    """

    name: str
    ratio: float | None
    noise: float | None
    refusal: str | None = None


@dataclasses.dataclass(frozen=True)
class ModuleReport:
    """One layer module.

    Attributes:
      name: as in the metrics and at the controller.
      units: names of its submodules.
      parameters: how many numbers.
      share: of the model's parameters, 0..1.
      reference: where its reference model would run: "controller", "worker" (in the training process, in bf16), or
        "unknown" without a batch.
      reason: why not on the controller.
      backends: what a controller on this machine could choose from, the fastest first.
    """

    name: str
    units: tuple[str, ...]
    parameters: int
    share: float
    reference: str
    reason: str | None = None
    backends: tuple[BackendReport, ...] = ()


@dataclasses.dataclass(frozen=True)
class Saving:
    """The cost of a step with the first layer modules frozen.

    Attributes:
      frozen_prefix: how many are frozen.
      frozen_share: of the parameters, 0..1.
      ratio: of the time for forward and backward to that with nothing frozen, the median of interleaved rounds.
      least, most: of the rounds.
    """

    frozen_prefix: int
    frozen_share: float
    ratio: float
    least: float
    most: float


@dataclasses.dataclass(frozen=True)
class Report:
    """The findings of examine(). `refusal` is what attach() would raise, or None; `notes` say what is not known;
    `embedding_prefix` is how many of the first layer modules are lookup tables, which may freeze early."""

    model: str
    parameters: int
    modules: tuple[ModuleReport, ...]
    savings: tuple[Saving, ...]
    refusal: str | None
    notes: tuple[str, ...]
    embedding_prefix: int = 0

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2)

    def __str__(self) -> str:
        lines = [f"{self.model}: {self.parameters:,} parameters, {len(self.modules)} layer modules"]
        if self.modules:
            lines += [
                "",
                *_table(
                    ["", "layer module", "parameters", "share", "reference model", "time", "noise"],
                    [
                        [str(i), module.name, f"{module.parameters:,}", f"{module.share:.1%}", *_place(module)]
                        for i, module in enumerate(self.modules)
                    ],
                ),
            ]
        if any(module.backends for module in self.modules):
            lines += [
                "  time: of the fastest backend on one thread here, over float32 operator by operator; it is taken",
                "  once its noise is under a tenth of the plasticity",
            ]
        for reason in dict.fromkeys(module.reason for module in self.modules if module.reason):
            numbers = ", ".join(str(i) for i, module in enumerate(self.modules) if module.reason == reason)
            lines.append(f"  not on the controller: {numbers}: {reason}")
        if self.savings:
            lines += [
                "",
                "Forward and backward with the first k layer modules frozen, over nothing frozen "
                "(median [least, most]):",
                *_table(
                    ["k", "frozen", "time"],
                    [
                        [
                            str(saving.frozen_prefix),
                            f"{saving.frozen_share:.1%}",
                            f"{saving.ratio:.2f} [{saving.least:.2f}, {saving.most:.2f}]",
                        ]
                        for saving in self.savings
                    ],
                ),
            ]
        verdict = f"attach() would refuse: {self.refusal}" if self.refusal else "attach() would take this model."
        lines += ["", verdict]
        lines += [f"Note: {note}" for note in self.notes]
        return "\n".join(lines)


def _place(module: ModuleReport) -> list[str]:
    """Where the reference model runs and by which backend, its time and its noise."""
    if module.backends and (best := module.backends[0]).ratio is not None:
        return [f"controller, {best.name}", f"{best.ratio:.2f}", f"{best.noise:.0e}"]
    return [{CONTROLLER: "controller", WORKER: "training process, bf16", UNKNOWN: "?"}[module.reference], "", ""]


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    # Words to the left, numbers to the right.
    left = [not rows[0][i][:1].isdigit() for i in range(len(head))]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if is_left else cell.rjust(width) for cell, width, is_left in zip(row, widths, left)
        ).rstrip()
        for row in [head, *rows]
    ]
