"""A Report says what egeria.doctor() has found: as an object, as JSON, and in words."""

from __future__ import annotations

import dataclasses
import json

# Loading that takes more of a step's time than this is worth a word.
_MUCH = 0.05
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
    """The cost of a step with the first layer modules frozen, and with what the script has frozen itself.

    Attributes:
      frozen_prefix: how many Egeria has frozen; 0: only what the script has.
      frozen_share: of the parameters, 0..1.
      ratio: of the time for forward and backward to that with nothing frozen by Egeria, the median of interleaved
        rounds.
      least, most: of the rounds.
      fused: the same ratio with frozen layers in inference form (Config.frozen_forward); None: they have none.
      cached: the same ratio where the cache has what the frozen layers give, but for the time of getting it; None: it
        cannot keep that.
      sample_bytes: what it would keep of a sample.
      reason: why the cache cannot keep it.
    """

    frozen_prefix: int
    frozen_share: float
    ratio: float
    least: float
    most: float
    fused: float | None = None
    cached: float | None = None
    sample_bytes: int | None = None
    reason: str | None = None


@dataclasses.dataclass(frozen=True)
class Loading:
    """Says what it takes to load a batch in the process that trains, or to wait for the workers that do.

    Attributes:
      batch: the time over that of a step with nothing frozen by Egeria.
      samples: in the data set.
    """

    batch: float
    samples: int | None


@dataclasses.dataclass(frozen=True)
class Report:
    """The findings of examine(). `refusal` is what attach() would raise, or None; `notes` say what is not known;
    `embedding_prefix` is how many of the first layer modules are lookup tables, which may freeze early; `loading` is
    there where a loader was given."""

    model: str
    parameters: int
    modules: tuple[ModuleReport, ...]
    savings: tuple[Saving, ...]
    refusal: str | None
    notes: tuple[str, ...]
    embedding_prefix: int = 0
    loading: Loading | None = None

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
                "  The time is that of the fastest backend on one thread here, as a share of plain float32's. The",
                "  backend is used once its noise is under a tenth of the plasticity.",
            ]
        for reason in dict.fromkeys(module.reason for module in self.modules if module.reason):
            numbers = ", ".join(str(i) for i, module in enumerate(self.modules) if module.reason == reason)
            lines.append(f"  not on the controller: {numbers}: {reason}")
        if self.savings:
            lines += ["", *self._savings()]
        if self.loading is not None:
            lines += ["", *self._loading(self.loading)]
        verdict = f"attach() would refuse: {self.refusal}" if self.refusal else "attach() would take this model."
        lines += ["", verdict]
        lines += [f"Note: {note}" for note in self.notes]
        return "\n".join(lines)

    def _savings(self) -> list[str]:
        samples = self.loading.samples if self.loading is not None else None
        head = ["k", "frozen", "as they are", "fused", "cached", "a sample"] + ["all samples"] * (samples is not None)
        rows = []
        for saving in self.savings:
            row = [str(saving.frozen_prefix), f"{saving.frozen_share:.1%}"]
            row += [f"{_percent(saving.ratio)} ({100 * saving.least:.0f} to {100 * saving.most:.0f})"]
            row += ["-" if ratio is None else _percent(ratio) for ratio in (saving.fused, saving.cached)]
            row += [_size(saving.sample_bytes)]
            row += [_size(saving.sample_bytes, samples)] * (samples is not None)
            rows.append(row)
        lines = [
            "The time of forward and backward with the first k layer modules frozen, as a share of the time with",
            "nothing frozen: the median (least to most). Frozen layers run as they are, in inference form",
            "(frozen_forward='fused'), or come from the cache once an epoch has filled it. The last columns are the",
            "bytes that the cache keeps:",
            *_table(head, rows),
        ]
        for reason in dict.fromkeys(saving.reason for saving in self.savings if saving.reason):
            numbers = ", ".join(str(saving.frozen_prefix) for saving in self.savings if saving.reason == reason)
            lines.append(f"  the cache cannot keep k = {numbers}: {reason}")
        return lines

    def _loading(self, loading: Loading) -> list[str]:
        lines = [f"Loading a batch takes {_percent(loading.batch)} of a step's time."]
        cached = [saving for saving in self.savings if saving.cached is not None]
        best = min(cached, key=lambda saving: saving.cached, default=None)
        if best is not None and loading.batch > _MUCH and best.cached < loading.batch:
            lines += [
                f"  From the cache a step takes {_percent(best.cached)} with k = {best.frozen_prefix}, so that loading "
                "decides.",
                "  If a sample's index always names the same sample, egeria.data.wrap(loader, skip_loading=True)",
                "  leaves most of it out.",
            ]
        return lines


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.0f} %"


def _size(bytes_: int | None, times: int | None = 1) -> str:
    if bytes_ is None or times is None:
        return "-"
    value, units = float(bytes_ * times), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.3g} {units[0]}"


def _place(module: ModuleReport) -> list[str]:
    """Where the reference model runs and by which backend, its time and its noise."""
    if module.backends and (best := module.backends[0]).ratio is not None:
        return [f"controller, {best.name}", _percent(best.ratio), f"{best.noise:.0e}"]
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
