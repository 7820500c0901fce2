"""egeria bench: what reports say of records."""

from __future__ import annotations

import json
import math
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from bench.harness import comparisons, groups, measured, records, spread, wording
from bench.harness.errors import BenchError
from bench.harness.overview import overview, table
from bench.harness.report import README_MARKS, task_report, write_readme, write_reports
from bench.harness.runs import CLOCK
from bench.harness.task import Quality
from bench.harness.verdicts import further, judge, negative_control, summary

ACCURACY = Quality("accuracy", "points", higher_is_better=True, scale=100)
LOSS = Quality("loss", "nats", higher_is_better=False)


def record(run: str, seed: int, final: float, seconds: float, kind: str = "policy", **fields) -> dict:
    """A run of 100 steps whose loss falls from 1 to `final` in a straight line."""
    curve = [
        {"step": step, "seconds": seconds * step / 100, "loss": 1 + (final - 1) * step / 100} for step in (10, 50, 100)
    ]
    return {
        "version": records.RECORD_VERSION,
        "task": "digits",
        "profile": "small",
        "settings": "a",
        "ranks": 2,
        "seed": seed,
        "run": run,
        "run_hash": run,
        "kind": kind,
        "policy": run.partition("+")[0] if kind == "policy" else None,
        "options": {},
        "started": 0,
        "quality": "loss",
        "steps": 100,
        "first_step": 0,
        "seconds": seconds,
        "curve": curve,
        "final": final,
        "frozen_share": 0.1,
        "parameters": 12,
        "modules": [{"name": "a", "parameters": 8}, {"name": "b", "parameters": 4}],
        "switches": [{"step": 60, "frozen_prefix": 1}] if kind == "policy" else [],
        "decisions": [],
        "summary": None,
        "machine": {"cores": 2, "processor": "p", "device": "cpu", "torch": "2", "egeria": "c"},
        **fields,
    }


def plain(seed: int, final: float = 0.2) -> dict:
    return record("plain", seed, final, 100, kind="plain")


def group(*entries: dict) -> groups.Group:
    (found,) = groups.group(entries)
    return found


def auto_with_controls(auto: float, short: float, drop: float) -> list[dict]:
    return [
        entry
        for seed in (0, 1)
        for entry in (
            plain(seed, 0.200 + 0.001 * seed),
            record("auto", seed, auto, 90),
            record("early", seed, 0.5, 60, "early"),
            record("short 0.90", seed, short, 91, "short"),
            record("drop 0.90", seed, drop, 89, "drop"),
        )
    ]


def test_differences_are_paired_by_seed_and_positive_where_better():
    runs = group(plain(0, 0.2), plain(1, 0.4), record("auto", 0, 0.19, 90), record("auto", 1, 0.41, 80))
    row = comparisons.row(runs, "auto", LOSS)
    assert row.gain.mean == pytest.approx(0.0)
    assert (row.gain.least, row.gain.most) == (pytest.approx(-0.01), pytest.approx(0.01))
    assert row.ratio.mean == pytest.approx(0.85)
    assert ACCURACY.gain(0.91, 0.90) == pytest.approx(1.0)


def test_a_seed_without_its_plain_run_does_not_count():
    runs = group(plain(0), record("auto", 0, 0.2, 90), record("auto", 7, 0.9, 10))
    assert comparisons.row(runs, "auto", LOSS).gain.count == 1


def test_time_to_quality_lies_between_evaluations():
    runs = group(plain(0, 0.2), record("auto", 0, 0.1, 90), record("slow", 0, 0.3, 90))
    assert comparisons.time_to(runs.others["auto"][0], LOSS, 0.2) == pytest.approx(90 * 8 / 9)
    assert comparisons.row(runs, "auto", LOSS).reached.mean == pytest.approx(0.9 * 8 / 9)
    assert comparisons.row(runs, "slow", LOSS).reached is None


def test_records_of_older_settings_are_left_out():
    old = {**record("auto", 0, 0.9, 50), "settings": "old"}
    runs = group(old, {**plain(0), "started": 5}, {**record("auto", 0, 0.2, 90), "started": 6})
    assert comparisons.row(runs, "auto", LOSS).gain.mean == pytest.approx(0)


@pytest.mark.parametrize(
    ("values", "half_width", "verdict"),
    [
        ([0.1, 0.2], 6.314 * 0.05, spread.Verdict.OPEN),
        ([0.1, 0.2, 0.3], 2.92 * 0.1 / 3**0.5, spread.Verdict.BEATS),
        ([-0.1, -0.2, -0.3], 2.92 * 0.1 / 3**0.5, spread.Verdict.LOSES),
        ([0.0, 0.0], 0.0, spread.Verdict.OPEN),
        ([0.1], None, spread.Verdict.ONE_SEED),
        ([0.1, float("nan")], None, spread.Verdict.DIVERGED),
    ],
)
def test_verdicts_are_by_students_interval(values: list[float], half_width: float | None, verdict: spread.Verdict):
    found = spread.Spread.of(values)
    assert found.half_width == pytest.approx(half_width)
    assert found.verdict is verdict


def test_stopping_is_the_plain_curve_at_the_policys_time():
    runs = group(plain(0, 0.2), record("auto", 0, 0.19, 75))
    (duel,) = comparisons.duels(runs, "auto", LOSS)
    assert duel.control == comparisons.STOP
    assert duel.gain.mean == pytest.approx(1 - 0.8 * 0.75 - 0.19)
    assert duel.relative.mean == pytest.approx(duel.gain.mean / 0.2)
    assert duel.control_ratio.mean == pytest.approx(0.75)
    assert comparisons.between_evaluations(runs) == pytest.approx(1 / 3)


def swept(seed: int, peak: float, final: float) -> dict:
    return record(f"sweep {peak:g}", seed, final, 900, kind="sweep", options={"peak": peak})


def test_a_sweep_tells_which_rate_is_best_and_no_times():
    page = task_report(group(plain(0, 0.2), swept(0, 2, 0.3), swept(0, 0.5, 0.25)), LOSS)
    assert "| 100 % | 0.5 | 1 | 0.2500 |\n| 100 % | 1 | 1 | 0.2000 |\n| 100 % | 2 | 1 | 0.3000 |" in page
    assert "The task's own rate is the best at 100 % of the steps." in page
    assert "900" not in page and "`sweep 2` |" not in page
    assert "The best rate is 2 times the task's own at 100 % of" in task_report(
        group(plain(0, 0.2), swept(0, 2, 0.1)), LOSS
    )


def test_a_seed_that_served_the_sweep_alone_counts_in_no_other_number():
    tuning = record("plain", 100, 0.9, 900, kind="plain")
    runs = group(plain(0), plain(1), record("auto", 0, 0.2, 90), tuning, swept(100, 2, 0.95))
    assert sorted(runs.plain) == [0, 1]
    assert "in 100 s (100 to 100)" in task_report(runs, LOSS)
    assert "No other number here counts the seeds of the sweep." in task_report(runs, LOSS)
    assert len(runs.records) == 5
    assert "not tuned" not in task_report(runs, LOSS)
    better = group(plain(0), record("auto", 0, 0.2, 90), tuning, swept(100, 2, 0.85))
    assert "**The plain run is not tuned**: 2 times its learning rate did better in a sweep." in summary(better, LOSS)
    # A seed of the sweep that has a policy's run as well counts, and so do plain runs where there are no others.
    assert sorted(group(plain(0), record("auto", 0, 0.2, 90), swept(0, 2, 0.3)).plain) == [0]
    assert sorted(group(plain(0), swept(0, 2, 0.3)).plain) == [0]


def test_other_scores_stand_beside_the_quality():
    def with_f1(entry: dict, f1: float) -> dict:
        return {**entry, "curve": [*entry["curve"][:-1], {**entry["curve"][-1], "f1": f1}]}

    runs = group(
        *(with_f1(run(seed), f1) for seed, run, f1 in [(0, plain, 0.5), (1, plain, 0.7)]),
        *(with_f1(record("auto", seed, 0.19, 75), 0.8) for seed in (0, 1)),
    )
    mean, over = comparisons.other_scores(runs, "auto", LOSS)["f1"]
    assert (mean, over.mean, over.least) == (pytest.approx(0.8), pytest.approx(0.2), pytest.approx(0.1))
    assert "| `auto` | 2 | 0.8000 | +0.2000 (-0.4314 to 0.8314) |" in task_report(runs, LOSS)
    # Records of older versions may lack it.
    assert comparisons.other_scores(group(plain(0), with_f1(record("auto", 0, 0.19, 75), 0.8)), "auto", LOSS) == {}


@pytest.mark.parametrize(("seconds", "loss"), [(5, 0.92), (10, 0.92), (30, 0.76), (100, 0.2), (130, 0.2)])
def test_stopping_lies_between_two_evaluations(seconds: float, loss: float):
    assert comparisons.quality_at(plain(0, 0.2), LOSS, seconds) == pytest.approx(loss)


@pytest.mark.parametrize(
    ("auto", "short", "drop", "control", "said"),
    [
        (0.2, 0.35, 0.34, "to stop the plain run (`stop`)", "beats it"),
        (0.2, 0.25, 0.24, "to leave out late steps (`drop`)", "beats it"),
        (0.2, 0.19, 0.24, "a shorter schedule (`short`)", "loses to it"),
        (0.2, 0.25, 0.20, "to leave out late steps (`drop`)", "cannot be told apart from it"),
        (float("nan"), 0.25, 0.24, "to stop the plain run (`stop`)", "since a run diverged"),
        (0.2, float("nan"), 0.24, "to leave out late steps (`drop`)", "beats it"),
    ],
)
def test_the_first_sentence_names_the_strongest_control_and_the_verdict(
    auto: float, short: float, drop: float, control: str, said: str
):
    runs = group(*auto_with_controls(auto, short, drop))
    first = summary(runs, LOSS)[0]
    assert f"the strongest control is {control}, and `auto` " in first and said in first
    assert task_report(runs, LOSS).splitlines()[2].startswith(first)


def test_a_control_that_not_all_seeds_have_counts_over_those_that_have_it():
    entries = [entry for entry in auto_with_controls(0.2, 0.19, 0.24) if entry["kind"] != "short" or entry["seed"] == 0]
    by_control = {duel.control: duel for duel in comparisons.duels(group(*entries), "auto", LOSS)}
    assert (by_control["short"].gain.count, by_control["drop"].gain.count) == (1, 2)
    assert by_control["short"].gain.mean == pytest.approx(-0.01)
    said = summary(group(*entries), LOSS)[0]
    assert "(`short`)" in said and said.endswith(" That control was run for 1 of the 2 seeds.")
    entries += [plain(2, 0.2), record("auto", 2, 0.2, 90)]
    assert "short" not in {duel.control for duel in comparisons.duels(group(*entries), "auto", LOSS)}


def test_a_control_of_enough_seeds_stays_however_many_a_policy_has():
    entries = [run for seed in range(8) for run in (plain(seed, 0.2), record("auto", seed, 0.21, 90))]
    entries += [record("short 0.90", seed, 0.19, 90, "short") for seed in range(comparisons.ENOUGH_SEEDS)]
    by_control = {duel.control: duel for duel in comparisons.duels(group(*entries), "auto", LOSS)}
    assert by_control["short"].gain.count == comparisons.ENOUGH_SEEDS


def test_layer_wise_decay_is_stopped_at_the_policys_time():
    entries = [plain(0, 0.2), record("auto", 0, 0.19, 75), record("decay 0.9", 0, 0.1, 100, "decay")]
    by_control = {duel.control: duel for duel in comparisons.duels(group(*entries), "auto", LOSS)}
    assert by_control["decay"].gain.mean == pytest.approx(1 - 0.9 * 0.75 - 0.19)
    assert by_control["decay"].control_ratio.mean == pytest.approx(0.75)


def test_where_a_shorter_schedule_has_no_better_rate_it_stands_for_the_horizon(monkeypatch: pytest.MonkeyPatch):
    entries = auto_with_controls(0.2, 0.22, 0.24)
    assert "horizon" not in {duel.control for duel in comparisons.duels(group(*entries), "auto", LOSS)}
    entries.append(record("horizon 0.90", 0, 0.21, 90, "horizon"))
    duels = {duel.control: duel for duel in comparisons.duels(group(*entries), "auto", LOSS)}
    assert duels["horizon"].gain.mean == pytest.approx(0.015)


def test_what_saves_nothing_is_compared_with_plain():
    runs = group(plain(0, 0.2), record("auto", 0, 0.21, 100))
    assert [duel.gain.mean for duel in comparisons.duels(runs, "auto", LOSS)] == [pytest.approx(-0.01)] * (
        1 + len(comparisons.RUN_CONTROLS)
    )
    assert "**Train plainly instead**: `auto` saved no time here." in summary(runs, LOSS)


@pytest.mark.parametrize(
    ("finals", "seconds", "said"),
    [
        ((0.28, 0.281), 90, "that time is as good"),  # the plain runs at nine tenths of their steps
        ((0.28, 0.3), 90, "that time is as good"),
        ((0.35, 0.351), 90, "that time is better"),
    ],
)
def test_where_stopping_is_as_good_the_page_says_so(finals: tuple[float, float], seconds: float, said: str):
    runs = group(plain(0), plain(1, 0.201), *(record("auto", seed, finals[seed], seconds) for seed in (0, 1)))
    (line,) = [line for line in summary(runs, LOSS) if "**Stop instead**" in line]
    assert said in line
    assert "| stop instead |" in overview([runs])


def test_where_stopping_is_not_as_good_the_page_does_not_say_so():
    ahead = group(plain(0), plain(1, 0.201), record("auto", 0, 0.26, 90), record("auto", 1, 0.2, 90))
    assert not any("Stop" in line for line in summary(ahead, LOSS))
    assert any("more seeds have to tell" in line for line in summary(ahead, LOSS))
    one = group(plain(0), record("auto", 0, 0.3, 90))
    assert "These runs do not tell whether `auto` is worth it." in summary(one, LOSS)
    won = group(*auto_with_controls(0.2, 0.25, 0.24))
    assert "Freezing pays on this task." in summary(won, LOSS)
    lost = group(*auto_with_controls(0.2, 0.19, 0.24))
    assert "**Use `short` instead**: it is better in the same time." in summary(lost, LOSS)


def test_percents_have_their_spread_over_seeds():
    runs = group(plain(0), plain(1), record("auto", 0, 0.19, 80), record("auto", 1, 0.21, 90))
    row = comparisons.row(runs, "auto", LOSS)
    assert wording.saved(row) == "15 % (-17 to 47)"
    assert wording.percents(row.relative, 1, sign=True) == "0.0 % (-31.6 to 31.6)"
    assert wording.better_or_worse(row.relative) == "the same (-31.6 to 31.6)"
    assert wording.in_unit(row.gain, LOSS) == "0.0000 (-0.0631 to 0.0631)"
    one = comparisons.row(group(plain(0), record("auto", 0, 0.21, 80)), "auto", LOSS)
    assert wording.better_or_worse(one.relative) == "5.0 % worse (one seed)"
    assert wording.saved(one) == "20 % (one seed)"
    lost = comparisons.row(group(plain(0), record("auto", 0, float("nan"), 80)), "auto", LOSS)
    assert wording.percents(lost.relative) == "diverged"


def test_the_policy_with_the_most_seeds_is_judged_and_auto_among_equals():
    both = [record(label, 0, 0.2, 90) for label in ("finetune", "auto", "staged")]
    assert judge(group(plain(0), plain(1), *both), LOSS).policy.label == "auto"
    more = group(plain(0), plain(1), *both, record("finetune", 1, 0.2, 90))
    assert judge(more, LOSS).policy.label == "finetune"
    assert judge(group(plain(0), record("staged", 0, 0.2, 90)), LOSS).policy.label == "staged"
    assert summary(group(plain(0)), LOSS)[0] == "**No policy has been run on this task.**"


def test_it_says_what_the_policy_earns_over_a_clock_and_whether_more_steps_are_better_and_still_sooner():
    runs = group(*auto_with_controls(0.2, 0.25, 0.24), *(record("staged", seed, 0.21, 80) for seed in (0, 1)))
    assert further(runs, LOSS) == [
        "The plain clock `staged` saved 20 % (20 to 20). The quality of `auto` is 5.0 % better (4.9 to 5.1) than that "
        "of `staged`."
    ]
    for final, seconds, said in ((0.19, 99, "better, and"), (0.21, 99, "not both"), (0.19, 101, "not both")):
        longer = group(plain(0), record("auto", 0, 0.2, 90), record("auto+6%", 0, final, seconds))
        assert any("`auto+6%` trains for more steps" in line and said in line for line in further(longer, LOSS))


@pytest.mark.parametrize(
    ("finals", "times", "said"),
    [
        ((0.19, 0.191), (90, 91), "It is better, and sooner, both beyond the spread over seeds."),
        ((0.15, 0.199), (90, 91), "By the mean it is better, and sooner."),
        ((0.19, 0.191), (70, 99), "By the mean it is better, and sooner."),
    ],
)
def test_it_says_whether_more_steps_are_better_and_sooner_beyond_the_spread(
    finals: tuple[float, float], times: tuple[float, float], said: str
):
    longer = [record("auto+6%", seed, finals[seed], times[seed]) for seed in (0, 1)]
    runs = group(*(plain(seed, 0.2) for seed in (0, 1)), *longer)
    (line,) = [line for line in further(runs, LOSS) if "auto+6%" in line]
    assert line.endswith(said)


def test_other_constants_have_a_table_of_their_own_beside_the_policy(tmp_path: pathlib.Path):
    wide = [record("wide", seed, 0.19, 80, policy="auto", options={"start": 0.5}) for seed in (0, 1)]
    runs = group(*auto_with_controls(0.2, 0.25, 0.24), *wide, record("auto+6%", 0, 0.2, 95, policy="auto"))
    assert runs.variants == ["wide"]
    assert runs.policies == ["auto"]
    own, other = task_report(runs, LOSS).partition("## Other constants")[::2]
    assert "| `wide` |" not in own and "| `auto+6%` |" in own
    assert "| `auto` | its own | 2 | +0.2 % (-1.3 to 1.8) |  | 10 % (10 to 10) | 10.0 % | 1.0 |" in other
    assert '| `wide` | `{"start": 0.5}` | 2 | +5.2 % (3.7 to 6.7) | +5.0 % (4.9 to 5.1) | 20 % (20 to 20) |' in other


def test_other_constants_under_a_policys_own_name_are_seen_and_not_mixed_in_silence():
    sooner = {"start": 0.5}
    one = [plain(0), record("auto", 0, 0.2, 90, options=sooner)]
    runs = group(*one)
    assert '| `auto` (`{"start": 0.5}`) | 1 |' in task_report(runs, LOSS)
    assert "Some rows mix" not in task_report(runs, LOSS)

    report = task_report(group(*one, plain(1), record("auto", 1, 0.2, 90)), LOSS)
    assert '| `auto` | Seed 0 with `{"start": 0.5}`, seed 1 with its own constants |' in report
    assert '| `auto` (`{"start": 0.5}`, its own) | 2 |' in report


def test_the_clock_of_a_bare_schedule_is_its_own_constant():
    clock = {"entries": [{"fraction": at, "module_share": share} for at, share in CLOCK]}
    report = task_report(group(plain(0), record("schedule", 0, 0.2, 90, options=clock)), LOSS)
    assert "| `schedule` | 1 |" in report
    later = {"entries": [{"fraction": 0.95, "module_share": 1.0}]}
    report = task_report(group(plain(0), record("schedule", 0, 0.2, 90, options=later)), LOSS)
    assert '| `schedule` (`{"entries": [{"fraction": 0.95' in report


def test_it_says_which_time_is_a_runs_own_and_estimates_what_watching_took_before():
    spent = {"hooks": 0.3, "agreement": 0.6, "start": 5.0}
    shared = record("auto", 0, 0.2, 90, first_step=70, summary={"saved_seconds": 12.0, "spent_seconds": spent})
    runs = group(plain(0), shared, record("plasticity", 0, 0.2, 90))
    assert comparisons.row(runs, "auto", LOSS).watching == pytest.approx(0.9 / 30 * 70 / 100)
    assert comparisons.row(runs, "plasticity", LOSS).watching is None
    report = task_report(runs, LOSS)
    assert "and the last 30 % of the steps are its own. To be watched up to there would have cost about 2.1 %" in report


def test_processor_time_has_the_caches_in_it_and_is_told_where_all_records_have_it():
    cache = {"passes": 40, "passes_skipped": 30, "processor_seconds": 10.0}
    cached = record("auto", 0, 0.2, 90, processor_seconds=60.0, cache=cache)
    runs = group({**plain(0), "processor_seconds": 100.0}, cached)
    assert comparisons.row(runs, "auto", LOSS).processor.mean == pytest.approx(0.65)
    assert "| 35.0 % (one seed) |" in task_report(runs, LOSS)
    assert "| 30 of 40 |" in task_report(runs, LOSS)
    assert comparisons.row(group(plain(0), cached), "auto", LOSS).processor is None


def test_it_says_which_rows_mix_versions_and_machines():
    entries = auto_with_controls(0.2, 0.25, 0.24)
    assert "Some rows mix" not in task_report(group(*entries), LOSS)

    def elsewhere(entry: dict, **facts: object) -> dict:
        return {**entry, "machine": {**entry["machine"], **facts}}

    newer = [elsewhere(entry, egeria="d") if entry["seed"] == 1 else entry for entry in entries]
    newer += [record("auto", 2, 0.2, 90), plain(2)]
    report = task_report(group(*newer), LOSS)
    assert "| `plain` | Seeds 0, 2 by version c, seed 1 by version d |" in report
    assert "| `auto` | Seeds 0, 2 by version c, seed 1 by version d. The plain runs likewise |" in report
    assert (
        "| `early`, `short 0.90`, `drop 0.90` | Seed 0 by version c, seed 1 by version d. The plain runs likewise |"
        in report
    )
    moved = [elsewhere(entries[0], cores=4), *entries[1:5]]
    said = "Seed 0 on 2 cores (p), device cpu, torch 2. The plain runs: seed 0 on 4 cores (p), device cpu, torch 2 |"
    assert said in task_report(group(*moved), LOSS)


def test_plain_runs_of_other_seeds_are_no_noise_of_a_row():
    runs = group(*auto_with_controls(0.203, 0.25, 0.24), plain(2, 0.3))
    assert comparisons.row(runs, "auto", LOSS).noise == pytest.approx(0.001 / 2**0.5)
    assert "Plain runs of these seeds differ by 0.4 %." in summary(runs, LOSS)


def test_the_overview_counts_no_task_with_one_seed():
    single = group(plain(0), record("auto", 0, 0.9, 50))
    assert "No policy has been run with several seeds" in overview([single])
    assert "| `stop`: -150 % (one seed) |" in table([single], "docs/results")
    text = overview([single, group(*({**entry, "ranks": 1} for entry in auto_with_controls(0.2, 0.25, 0.24)))])
    assert "The policy saved time on 1 of 1 tasks." in text
    assert "1 more task has one seed, which tells too little to count." in text


def test_the_overview_counts_no_task_with_a_run_that_diverged():
    diverged = group(*auto_with_controls(float("nan"), 0.25, 0.24))
    assert "| `stop`: diverged |" in table([diverged], "docs/results")
    text = overview([diverged, group(*({**entry, "ranks": 1} for entry in auto_with_controls(0.2, 0.25, 0.24)))])
    assert "The policy saved time on 1 of 1 tasks." in text
    assert "cannot be told apart from it on 0." in text
    assert "1 more had a run that diverged." in text


def test_the_overview_counts_the_tasks_on_which_the_policy_does_what_it_should():
    text = overview([group(*auto_with_controls(0.2, 0.25, 0.24))])
    assert "The policy saved time on 1 of 1 tasks. On 1 its quality is better" in text
    assert "It beats the strongest control of its own time on 1, loses to it on 0, and cannot be told apart" in text
    row = "| `auto` | 10 % (10 to 10) | +0.2 % (-1.3 to 1.8) | `drop`: +20.0 % (19.6 to 20.3) | freeze |"
    assert row in text


def test_the_table_for_a_readme_has_ten_rows_at_most_pretrained_networks_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bench.harness.overview._MOST_ROWS", 2)
    groups = [
        group(*({**entry, "task": task} for entry in auto_with_controls(0.2, 0.25, drop)))
        for task, drop in (("digits", 0.24), ("resnet50-imagenette", 0.1999), ("bert-squad", 0.24))
    ]
    assert table(groups, "docs/results").splitlines()[2:] == [
        "| [BERT (MiniLM-L6), SQuAD format](docs/results/bert-squad.md), fine-tuned | 10 % (10 to 10) | "
        "0 % (-1 to 2) | **ahead of `drop` by 20 % (20 to 20)** |",
        "| [ResNet-50, Imagenette](docs/results/resnet50-imagenette.md), from scratch | 10 % (10 to 10) | "
        "0 % (-1 to 2) | **behind `drop` by less than 1 %** |",
        "",
        "[The results](docs/results/README.md) have 1 more task.",
    ]
    assert table(groups, "docs/results", ["| a |"]).splitlines()[2:4] == [
        "| a |",
        table(groups, "docs/results").splitlines()[2],
    ]
    assert "(digits.md), profile `small`: freeze" in overview(groups)


def test_what_cannot_be_told_apart_is_level_in_the_table_for_a_readme():
    groups = [group(*auto_with_controls(0.2, 0.25, 0.2))]
    assert "| level with `drop`, 0 % (0 to 0) |" in table(groups, "docs/results")


def test_a_readme_gets_the_table_between_its_marks_and_keeps_the_rest(tmp_path: pathlib.Path):
    for entry in auto_with_controls(0.2, 0.25, 0.24):
        records.append(records.file_of(tmp_path / "results", "digits"), entry)
    page = tmp_path / "README.md"
    page.write_text("# Title\n")
    with pytest.raises(BenchError, match=r"\[NO_MARKER\]"):
        write_readme(tmp_path / "results", page)
    page.write_text("# Title\n\n" + "\nold\n".join(README_MARKS) + "\n\nThe end.\n")
    write_readme(tmp_path / "results", page)
    text = page.read_text()
    assert text.startswith(f"# Title\n\n{README_MARKS[0]}\n| task |") and text.endswith(
        f"\n{README_MARKS[1]}\n\nThe end.\n"
    )
    assert "old" not in text and "](results/digits.md)" in text
    write_readme(tmp_path / "results", page)
    assert page.read_text() == text


@pytest.mark.parametrize("final", [0.3, 0.2, float("nan"), float("inf")])
def test_the_negative_control_has_to_lose(final: float):
    noisy = group(plain(0, 0.2), plain(1, 0.3), *(record("early", seed, final, 60, "early") for seed in (0, 1)))
    said = negative_control(comparisons.row(noisy, "early", LOSS))
    assert ("This task proves nothing.**" in said) is math.isfinite(final)
    assert ("loses clearly: a run diverged" in said) is not math.isfinite(final)
    clear = group(*auto_with_controls(0.2, 0.25, 0.24))
    assert "loses clearly, as it must" in negative_control(comparisons.row(clear, "early", LOSS))
    one = group(plain(0), record("early", 0, 0.5, 60, "early"))
    assert "a single seed does not tell" in negative_control(comparisons.row(one, "early", LOSS))
    assert negative_control(None) == "**The negative control has not been run.**"


def test_a_run_that_diverged_is_reported_and_has_not_won():
    report = task_report(group(*auto_with_controls(float("nan"), 0.25, 0.24)), LOSS)
    assert "| `auto` | 2 | 10 % (10 to 10) | diverged | `stop` | diverged | cannot be told: a run diverged |" in report


def test_a_plain_run_that_diverged_is_no_single_seed():
    entries = auto_with_controls(0.2, 0.25, 0.24)
    entries[0] = plain(0, float("nan"))
    lines = summary(group(*entries), LOSS)
    assert "**Nothing can be said about the negative control: a plain run diverged.**" in lines
    assert "A plain run diverged, so that noise cannot be told." in lines
    assert not any("single seed" in line for line in lines)


def test_the_notes_of_a_folder_stand_below_the_table():
    runs = [group(plain(0), record("auto", 0, 0.2, 80))]
    assert "\n\nRecords of old versions are gone.\n\n## Pages" in overview(runs, "Records of old versions are gone.\n")
    assert overview(runs, "") == overview(runs)


def test_tables_of_measurements_are_those_of_their_records(tmp_path: pathlib.Path):
    (tmp_path / "measured").mkdir()
    value = {"median": 0.5, "least": 0.45, "most": 0.6, "unit": "ms"}
    rows = [{"what": "a step", "values": {"time": value, "seed": 3, "note": "shared"}}, {"what": "b", "values": {}}]
    origin = {"program": "tests/a.py", "arguments": "--b", "machine": "2 cores"}
    (tmp_path / "measured" / "a.json").write_text(json.dumps(origin | {"rows": rows}))
    page = tmp_path / "measurements.md"
    page.write_text("# A\n\n<!-- measured/a.json -->\nold\n<!-- end -->\n\nB.\n")
    said = measured.pages(tmp_path)[page]
    assert said == (
        "# A\n\n<!-- measured/a.json -->\n| what | time | seed | note |\n|---|---|---|---|\n"
        "| a step | 0.5 ms (0.45 to 0.6) | 3 | shared |\n| b |  |  |  |\n\n"
        "Measured by `tests/a.py --b` on 2 cores.\n<!-- end -->\n\nB.\n"
    )
    (tmp_path / "measured" / "a.json").write_text(json.dumps(origin | {"rows": rows, "transcribed": True}))
    assert "measured once and copied by hand" in measured.pages(tmp_path)[page]


def test_runs_on_a_page_stand_beside_the_plain_run_ahead_of_them(tmp_path: pathlib.Path):
    page = tmp_path / "tried.md"
    page.write_text("<!-- runs of tried.jsonl -->\n<!-- end -->\n")
    runs = [
        plain(0),
        record("wide", 0, 0.3, 80, options={"window": 20}, note="twice"),
        plain(1, 0.1),
        record("auto", 1, 0.2, 50),
    ]
    (tmp_path / "tried.jsonl").write_text("".join(json.dumps(run) + "\n" for run in runs))
    _, head, _, *rows, _ = measured.pages(tmp_path)[page].splitlines()
    assert head.count("against stopping then") == 1
    first, second = ([cell.strip() for cell in row.split("|")][2:9] for row in rows)
    assert first == ["0", "wide, twice", "20.0 %", "-50.0 %", "+30.0 %", '`{"window": 20}`', "1 from 60"]
    assert second == ["1", "auto", "50.0 %", "-100.0 %", "+350.0 %", "", "1 from 60"]


def test_reports_are_made_of_the_records_alone_and_repeatably(tmp_path: pathlib.Path):
    with pytest.raises(BenchError, match=r"\[NO_RECORDS\]"):
        write_reports(tmp_path)
    for entry in auto_with_controls(0.2, 0.25, 0.24):
        records.append(records.file_of(tmp_path, "digits"), entry)
    files = write_reports(tmp_path)
    assert {file.name for file in files} == {"digits.md", "README.md"}
    first = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
    assert {"digits-pareto.svg", "digits-timeline.svg"} <= set(first)
    write_reports(tmp_path)
    assert first == {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
