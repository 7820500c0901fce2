"""Writes the page and its pictures from the records and measurements alone: OUT.md beside the folder OUT."""

from __future__ import annotations

import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench import tasks
from bench.harness import records
from bench.harness.comparisons import final_quality
from bench.harness.errors import BenchError
from bench.harness.groups import Group, group
from bench.harness.runs import Kind
from bench.harness.spread import Spread
from bench.harness.sweeps import best_of, qualities
from bench.harness.task import Task
from bench.paper import pictures
from bench.paper.constants import signal
from bench.paper.duels import Duel, duels, shorts, spread_of, stopped_curve
from bench.paper.measurements import READ_SAMPLES, phases
from bench.paper.oracle import TOLERANCE, flat_since
from bench.paper.store import read_all_measured, read_oracle

ORACLE = "oracle"
_MOVING = "moving 3"
_REPLAYED = (3, 0.2)  # window and tolerance of the replay that is drawn
_SAVES_NOTHING = 0.97  # a longer time is about the plain run's
_POLICIES = ("plasticity", "gradnorm", "actnorm")
_NEAR_END = 1.0  # in the quality's unit

_ON_GPUS = (
    (
        "times to accuracy of all seven tasks, at full width",
        "egeria bench all --profile paper --policy plasticity,gradnorm,actnorm,auto --seeds 0,1,2 --data DIR --out OUT",
        "not run",
    ),
    (
        "this page at full resolution and on all images",
        "egeria bench resnet20-long --profile paper --checkpoints 200 --keep-checkpoints --data DIR --out OUT",
        "not run",
    ),
    (
        "step times and memory by prefix on a GPU",
        "python tests/benchmarks/gpu_step_times.py resnet50",
        "[measured](measurements.md#on-a-gpu)",
    ),
    (
        "gains with several machines, whose links are shaped here and real there",
        "python tests/benchmarks/nodes/node_traffic.py",
        "not run",
    ),
    (
        "a reference model on the processor beside a training on a GPU",
        "python -m pytest -q tests/gpu",
        "passed on one GPU",
    ),
)


def write_report(out: pathlib.Path, name: str, profile: str) -> list[pathlib.Path]:
    """Returns the files.

    Raises:
      BenchError: [NO_MEASUREMENTS], [NO_RECORDS].
    """
    page = _Page(out, name, profile)
    sections = [page.head(), page.convergence(), page.plasticity(), page.matched_time(), page.step_shares()]
    sections += [page.timeline(), page.constants(), page.precision(), page.on_gpus()]
    file = out.parent / f"{out.name}.md"
    file.write_text("\n\n".join(part.strip() for part in sections if part) + "\n", encoding="utf-8")
    return [file, *page.drawn]


class _Page:
    """The parts of the page. Pictures are of the first seed that was measured."""

    def __init__(self, out: pathlib.Path, name: str, profile: str):
        self._out, self._name, self._profile = out, name, profile
        self._task: Task = tasks.create(name, profile, None)
        self._all = read_all_measured(out, name, profile)
        self._measured = self._all[0]
        self._oracle = read_oracle(out, name, profile)
        found = [
            runs
            for runs in group(records.read(records.file_of(out, name)))
            if runs.profile == profile and runs.ranks == self._measured["ranks"] and runs.plain
        ]
        if not found:
            raise BenchError("NO_RECORDS", f"{records.file_of(out, name)} has no plain run of profile {profile}")
        self._runs: Group = found[0]
        self._phases = phases(self._task)
        self._drops = [begin for begin, _ in self._phases[1:]]
        self._duels = duels(self._runs, self._measured["step"], self._task.quality)
        self.drawn: list[pathlib.Path] = []

    def head(self) -> str:
        seeds = ", ".join(map(str, sorted(self._runs.plain)))
        machine = self._measured["machine"]
        return "\n\n".join(
            [
                "# The paper's figures, made here",
                oracle_verdict(
                    [duel for duel in self._duels if duel.label == ORACLE],
                    final_quality(self._runs.plain.values(), self._task.quality).deviation,
                    self._task.quality.unit,
                ),
                f"The task is `{self._name}` ({self._task.title}), profile `{self._profile}`. It has "
                f"{self._task.profile.steps} steps of {self._task.profile.batch_size} samples on {self._runs.ranks} "
                f"ranks. Seeds with a plain run: {seeds}. The paper is arXiv 2201.06227. Its text could not be read on "
                "the machine that made this page, so each section says which content it takes a figure to have.",
                *self._tuning(),
                self._plateau(),
                f"Everything ran on {machine['cores']} cores that other programs used meanwhile, so wall time says "
                "nothing here. The time of a run is the cost of its steps. Each counts what a step with its frozen "
                "prefix takes, by the parts of figure 9. Being watched is not in it, which is in favour of policies. "
                "Beside it stand processor seconds of rank 0's process, where both runs had the same processor. They "
                "vary with what the others did.",
                "These commands make the page. `oracle` prints the variant that the next command takes:",
                _commands(*self._training_commands()),
            ]
        )

    def _tuning(self) -> list[str]:
        """Says what a sweep of the plain run's learning rate has shown; nothing without one."""
        quality, peaks = self._task.quality, qualities(self._runs.records).get(1.0)
        if peaks is None:
            return []
        best = best_of(peaks, quality)
        seeds = ", ".join(map(str, peaks[best]))
        if best == 1.0:
            return [f"The plain run is tuned: no other rate of a sweep did better (seed {seeds})."]
        gains = [quality.gain(peaks[best][seed], final) for seed, final in peaks[1.0].items()]
        return [
            f"**The plain run is not tuned**: in a sweep {best:g} times its learning rate ended "
            f"{statistics.fmean(gains):.2f} {quality.unit} higher (seed {seeds})."
        ]

    def _plateau(self) -> str:
        """How early the plain runs are as good as at their end."""
        quality, found = self._task.quality, []
        for seed, plain in sorted(self._runs.plain.items()):
            since = plain["steps"]
            for point in reversed(plain["curve"]):
                if abs(quality.gain(point[quality.name], plain["final"])) > _NEAR_END:
                    break
                since = point["step"]
            found.append(f"{100 * since / plain['steps']:.0f} % (seed {seed})")
        return (
            f"The plain runs stay within {_NEAR_END} {quality.unit} of their end from these parts of the steps on: "
            f"{', '.join(found)}. This quality does not show what they learn after that."
        )

    def _training_commands(self) -> list[str]:
        bench, paper = (f"egeria bench {self._name}", f"python -m bench.paper {{}} --task {self._name} --out paper")
        common = "--no-early --data DIR --out paper"
        seeds = ",".join(map(str, sorted(self._runs.plain)))
        lines = [f"{bench} --seeds {seeds} --checkpoints 75 --keep-checkpoints {common}"]
        lines += [paper.format(f"measure --seed {measured['seed']} --data DIR") for measured in self._all]
        if self._oracle is not None:
            lines.append(paper.format(f"oracle --seed {self._oracle['seed']}"))
        for seed in sorted(self._runs.plain):
            runs = {label: found[seed] for label, found in self._runs.others.items() if seed in found}
            policies = ",".join(label for label in runs if label == runs[label]["policy"])
            options = [f"--policy {policies}"] if policies else []
            options += ["--variant 'oracle=schedule:...'"] if ORACLE in runs else []
            options += [f"--short {run['share']:g}" for run in runs.values() if run["kind"] == Kind.SHORT]
            if options:
                lines.append(f"{bench} --seeds {seed} {' '.join(options)} --controls none --resume {common}")
        return [*lines, paper.format("report")]

    def convergence(self) -> str:
        picture = self._picture("convergence")
        pictures.draw_convergence(picture, self._measured, self._drops)
        rows = []
        for index, name in enumerate(self._measured["modules"][:-1]):
            curve = [row[index] for row in self._measured["cka"]]
            steps = self._measured["steps"]
            flat = [flat_since(steps, curve, begin, end, TOLERANCE) for begin, end in self._phases]
            at_end = [_value_before(steps, curve, end) for _, end in self._phases[:-1]]
            rows.append([f"`{name}`", *(f"{value:.3f}" for value in at_end), *map(str, flat)])
        return _section(
            "Figure 1: front modules converge first",
            picture,
            [
                f"The similarity of each layer module's output to the final model's, on {self._measured['samples']} "
                "held-out samples. CKA has the estimator without bias; PWCCA takes each position as a sample. Dotted "
                "lines are drops of the learning rate.",
                _table(
                    [
                        "module",
                        *(f"CKA at step {end}" for _, end in self._phases[:-1]),
                        *(f"flat from step (phase {phase})" for phase in range(1, len(self._phases) + 1)),
                    ],
                    rows,
                ),
                self._convergence_verdict(),
            ],
        )

    def plasticity(self) -> str:
        picture = self._picture("plasticity")
        pictures.draw_plasticity(picture, self._measured, _MOVING, self._drops)
        steps, total = self._measured["steps"], self._measured["steps"][-1]
        moving = self._measured["plasticity"][_MOVING]
        means = []
        for begin, end in self._phases:
            inside = [
                statistics.median(row[:-1])
                for step, row in zip(steps, moving)
                if max(begin, 0.1 * total) < step <= end and any(row)
            ]
            means.append(statistics.fmean(inside) if inside else float("nan"))
        follows = (
            "falls with the rate"
            if all(b < 0.5 * a for a, b in zip(means, means[1:]))
            else "does not fall with the rate"
        )
        falls = ", ".join(f"{mean:.2g}" for mean in means)
        fixed = self._measured["plasticity"]["fixed"]
        at_end = statistics.median(fixed[-1][:-1])
        at_drop = statistics.median(row[:-1] for row in [_row_before(steps, fixed, self._phases[0][1])])[0]
        return _section(
            "Figure 4: plasticity with a fixed and with a moving reference",
            picture,
            [
                f"The SP loss of each layer module on {READ_SAMPLES} held-out samples. The fixed reference has the "
                f"weights of step {self._measured['fixed_reference']}. The moving one has those of one to three "
                "checkpoints before.",
                f"**Verdict.** With a moving reference the median module's plasticity is {falls} in the phases of the "
                f"learning rate: it {follows}. To the fixed reference it is {at_drop:.2g} at the end of the first "
                f"phase and {at_end:.2g} at the end of the training.",
            ],
        )

    def matched_time(self) -> str:
        seed = max(self._runs.plain, key=lambda seed: sum(duel.seed == seed for duel in self._duels))
        plain, quality = self._runs.plain[seed], self._task.quality
        points = [(duel.label, "o", duel.ratio, duel.gain) for duel in self._duels if duel.seed == seed]
        short = sorted(shorts(self._runs, seed).items())
        points += [
            (record["run"], "v", ratio, quality.gain(record["final"], plain["final"])) for ratio, record in short
        ]
        picture = self._picture("matched-time")
        pictures.draw_matched_time(picture, stopped_curve(plain, quality), points)
        table = _table(
            [
                "run",
                "seed",
                "cost of its steps",
                "processor seconds over plain",
                f"{quality.unit} over plain",
                "over stopping then",
                "over a short run",
            ],
            [
                [
                    f"`{duel.label}`",
                    str(duel.seed),
                    f"{duel.ratio:.3f}",
                    "another processor" if duel.measured is None else f"{duel.measured:.3f}",
                    f"{duel.gain:+.2f}",
                    f"{duel.over_stop:+.2f}",
                    "not trained" if duel.over_short is None else f"{duel.over_short:+.2f} (at {duel.short_ratio:.3f})",
                ]
                for duel in self._duels
            ],
        )
        return _section(
            "Figure 8: the rule and other ways to freeze, at matched time",
            picture,
            [
                f"Seed {seed} is drawn. Grey is the plain run, stopped there. Triangles are the whole schedule in "
                "fewer steps. A run is better than doing less where it lies above both.",
                table,
                self._matched_verdict(),
            ],
        )

    def step_shares(self) -> str:
        picture = self._picture("step-shares")
        rows = self._measured["step"]
        pictures.draw_step_shares(picture, rows)
        whole = sum(rows[0][part] for part in ("forward", "backward", "update"))
        half = rows[len(rows) // 2]
        cached = half["frozen_forward"] / whole
        saved = (rows[0]["backward"] - half["backward"] + rows[0]["update"] - half["update"]) / whole
        return _section(
            "Figure 9: where the time of a step goes",
            picture,
            [
                "Processor time of the parts of a rank's step by frozen prefix, medians of interleaved rounds on one "
                "thread. Hits of the cache cost something, and so does communication. Neither is in the picture.",
                f"**Verdict.** With {half['frozen_prefix']} of {len(rows)} layer modules frozen, the backward pass and "
                f"the update give back {100 * saved:.0f} % of a step. A cache can give back another "
                f"{100 * cached:.0f} %. {'Most' if saved > cached else 'Less than half'} of that is backward.",
            ],
        )

    def timeline(self) -> str:
        shown = {
            f"{label}, seed {seed}": record
            for label, seeds in self._runs.others.items()
            for seed, record in sorted(seeds.items())
            if record["kind"] == Kind.POLICY and label in (ORACLE, "plasticity")
        }
        for row in self._measured["replays"]:
            if (row["window"], row["tolerance"]) == _REPLAYED:
                steps = {"steps": self._measured["steps"][-1], "frozen_share": row["frozen_share"]}
                shown["the rule, replayed"] = {"switches": row["switches"], **steps}
        picture = self._picture("timeline")
        pictures.draw_timelines(picture, shown, self._drops)
        return _section(
            "Figure 11: freezing over a training",
            picture,
            [
                "The frozen prefix over the steps. The rule was replayed on the plain run's readings, with a window of "
                f"{_REPLAYED[0]} and a tolerance of {100 * _REPLAYED[1]:.0f} %. Dotted lines are drops of the learning "
                "rate.",
                *(_timeline_verdict(label, record, self._drops) for label, record in shown.items()),
            ],
        )

    def constants(self) -> str:
        rows = [
            [
                str(row["window"]),
                f"{100 * row['tolerance']:.0f} %",
                "never" if row["first_freeze"] is None else str(row["first_freeze"]),
                str(row["freezes"]),
                str(row["thaws"]),
                str(row["deepest"]),
                f"{100 * row['frozen_share']:.1f} %",
            ]
            for row in self._measured["replays"]
        ]
        shares = [100 * row["frozen_share"] for row in self._measured["replays"]]
        return _section(
            "Figure 12: the rule's constants",
            None,
            [
                "This is taken to be the sensitivity to window and tolerance. The rule was replayed on readings of the "
                f"plain run's checkpoints, {self._measured['steps'][0]} steps apart, all modules at once; nothing was "
                "trained. A training whose modules freeze would read something else afterwards.",
                _table(
                    ["window", "tolerance", "first freeze at", "freezes", "thaws", "deepest prefix", "frozen share"],
                    rows,
                ),
                "**Verdict.** "
                + (
                    f"The frozen share of the parameters, averaged over the steps, is between {min(shares):.1f} and "
                    f"{max(shares):.1f} %, as window and tolerance have it."
                    if max(shares) > 0
                    else "With none of these constants anything freezes on these readings."
                ),
            ],
        )

    def precision(self) -> str:
        readings = signal(self._measured, _MOVING)
        names = list(dict.fromkeys(name for row in self._measured["precision"] for name in row["backends"]))
        rows, worst = [], {name: 0.0 for name in names}
        for row, reading in zip(self._measured["precision"], readings):
            cells = []
            for name in names:
                found = row["backends"].get(name)
                if found is None or found["noise"] is None:
                    cells.append("no")
                    continue
                worst[name] = max(worst[name], found["noise"] / reading if reading else 0.0)
                cells.append(f"{found['time']:.2f}, {found['noise']:.1g}")
            rows.append([f"`{row['module']}`", f"{reading:.2g}", *cells])
        share = ", ".join(f"{100 * value:.2g} % (`{name}`)" for name, value in worst.items() if value > 1e-6) or "none"
        return _section(
            "Table 2: the precision of the reference",
            None,
            [
                "This is taken to be the reference model in cheaper arithmetic. `egeria.doctor()` measured it with the "
                "weights of half of the training. Each cell has the time over plain operators, and the SP loss that "
                "the arithmetic alone makes. The second column is the module's median reading. The times are "
                "ratios of interleaved wall times on a shared machine.",
                _table(["module", "reading", *(f"`{name}`" for name in names)], rows),
                f"**Verdict.** The arithmetic alone makes at most these shares of a module's median reading: {share}. "
                + (
                    "All are under the tenth that the controller allows."
                    if max(worst.values(), default=0.0) < 0.1
                    else "Not all are under the tenth that the controller allows, so it picks per module."
                ),
            ],
        )

    def on_gpus(self) -> str:
        return "\n\n".join(
            [
                "## What needs GPUs",
                "These commands are for machines that have GPUs.",
                _table(
                    ["figure of the paper", "command", "so far"],
                    [[what, f"`{command}`", state] for what, command, state in _ON_GPUS],
                ),
            ]
        )

    def _picture(self, name: str) -> pathlib.Path:
        self.drawn.append(self._out / f"{name}.svg")
        return self.drawn[-1]

    def _convergence_verdict(self) -> str:
        end = self._phases[0][1]
        steps = self._measured["steps"]
        first = [
            _value_before(steps, [row[index] for row in self._measured["cka"]], end)
            for index in range(len(self._measured["modules"]) - 1)
        ]
        half = len(first) // 2
        front, back = statistics.fmean(first[:half]), statistics.fmean(first[half:])
        order = "front modules are nearer to the final model" if front > back else "front modules are not ahead"
        near = 1 - TOLERANCE
        drop = "" if max(first) > near else f" No module comes above {near:.2f} before the first drop."
        return (
            f"**Verdict.** At the end of the first phase, {order}: the mean CKA is {front:.3f} in the front half and "
            f"{back:.3f} in the back half.{drop}"
        )

    def _matched_verdict(self) -> str:
        won = [
            duel.label
            for duel in self._duels
            if duel.over_short is not None and min(duel.over_stop, duel.over_short) > 0
        ]
        idle = [duel.label for duel in self._duels if duel.ratio > _SAVES_NOTHING]
        known = [duel for duel in self._duels if duel.over_short is not None]
        text = (
            f"**Verdict.** {_listed(won)} ends above both controls."
            if won
            else "**Verdict.** No run beats both controls."
        )
        if lost := [duel for duel in self._duels if duel.over_stop < 0]:
            behind = sorted(-duel.over_stop for duel in lost)
            text += (
                f" Stopping the plain run then is better than {_listed([duel.label for duel in lost])}, "
                f"by {behind[0]:.2f} to {behind[-1]:.2f} {self._task.quality.unit}."
            )
        unknown = [duel.label for duel in self._duels if duel not in known]
        text += f" No shorter schedule has been trained beside {_listed(unknown)}." if unknown else ""
        text += f" Under 3 % of the time is saved by {_listed(idle)}." if idle else ""
        missing = [policy for policy in _POLICIES if policy not in self._runs.others]
        if missing:
            command = f"egeria bench {self._name} --policy {','.join(missing)} --controls none --data DIR --out paper"
            text += f" {_listed(missing)} have not been trained. The command is `{command}`."
        return text


def oracle_verdict(found: Sequence[Duel], noise: float | None, unit: str) -> str:
    """The first line. `noise`: standard deviation of the plain runs' quality over the seeds."""
    ratio, over_stop, over_short = (spread_of(found, value) for value in ("ratio", "over_stop", "over_short"))
    if ratio is None or over_stop is None:
        return "**Whether the premise holds at this scale is not known: no oracle has been trained.**"
    controls = {"stopping the plain run": over_stop}
    if over_short is not None:
        controls["a shorter schedule"] = over_short
    margin = noise or 0.0
    lost = [name for name, over in controls.items() if over.mean < -margin]
    level = [name for name, over in controls.items() if -margin <= over.mean < margin]
    seeds = f"{ratio.count} seed{'s' if ratio.count > 1 else ''}"
    if lost:
        besides = f", and is no better than {' and '.join(level)}" if level else ""
        verdict = (
            f"**The premise fails at this scale ({seeds}): even an oracle loses to {' and to '.join(lost)}{besides}.**"
        )
    elif noise is None or min(over.mean for over in controls.values()) < noise:
        verdict = f"**The premise is not shown at this scale ({seeds}): an oracle is within the noise of doing less.**"
    else:
        verdict = f"**The premise does not fail at this scale ({seeds}).**"
    gains = " and ".join(f"{_beside(over, unit)} {name}" for name, over in controls.items())
    spread = "" if noise is None else f" Plain runs of different seeds differ by {noise:.2f} (standard deviation)."
    missing = "" if over_short is not None else " No shorter schedule of its time has been trained."
    return (
        f"{verdict} The oracle freezes each module where its CKA to the final model is flat in another seed's run. It "
        f"takes {100 * ratio.mean:.0f} % of the plain run's time, by the cost of its steps. There it ends {gains}."
        f"{spread}{missing}"
    )


def _timeline_verdict(label: str, record: Mapping[str, Any], drops: Sequence[int]) -> str:
    switches = record["switches"]
    if not switches:
        return f"**Verdict, {label}.** It froze nothing."
    prefixes = [0, *(switch["frozen_prefix"] for switch in switches)]
    thaws = [switch["step"] for before, switch in zip(prefixes, switches) if switch["frozen_prefix"] < before]
    delays = []
    for phase, (begin, end) in enumerate(zip([0, *drops], [*drops, record["steps"]]), 1):
        frozen = [switch["step"] for switch in switches if switch["frozen_prefix"] > 0]
        after = [step - begin for step in frozen if begin < step < end]
        delays.append(f"{min(after)} steps into phase {phase}" if after else f"never in phase {phase}")
    return (
        f"**Verdict, {label}.** It froze {_times(len(switches) - len(thaws))} and thawed {_times(len(thaws))}. "
        f"Its first freeze came {', '.join(delays)}. "
        f"On average {100 * record['frozen_share']:.1f} % of the parameters were frozen."
    )


def _value_before(steps: Sequence[int], curve: Sequence[float], end: int) -> float:
    return [value for step, value in zip(steps, curve) if step <= end][-1]


def _row_before(steps: Sequence[int], rows: Sequence[Sequence[float]], end: int) -> Sequence[float]:
    return [row for step, row in zip(steps, rows) if step <= end][-1]


def _beside(gain: Spread, unit: str) -> str:
    half_width = "" if gain.half_width is None else f" ± {gain.half_width:.2f}"
    return f"{abs(gain.mean):.2f}{half_width} {unit} {'above' if gain.mean >= 0 else 'below'}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _listed(names: Sequence[str]) -> str:
    quoted = [f"`{name}`" for name in dict.fromkeys(names)]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"


def _section(title: str, picture: pathlib.Path | None, texts: Sequence[str]) -> str:
    shown = [] if picture is None else [f"![{title}]({picture.parent.name}/{picture.name})"]
    return "\n\n".join([f"## {title}", *shown, *texts])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _commands(*lines: str) -> str:
    return "\n".join(["```", *lines, "```"])
