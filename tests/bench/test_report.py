"""egeria bench: what reports say of records."""

from __future__ import annotations

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from bench.harness import comparisons, records
from bench.harness.errors import BenchError
from bench.harness.report import overview, task_report, verdicts, write_reports
from bench.harness.runs import CLOCK
from bench.harness.task import Quality

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


def group(*entries: dict) -> comparisons.Group:
    (found,) = comparisons.group(entries)
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


def test_times_have_a_spread_over_seeds_too(tmp_path: pathlib.Path):
    one = record("auto", 0, 0.2, 80)
    entries = [plain(0), plain(1), one, record("auto", 1, 0.2, 90), record("staged", 0, 0.2, 80)]
    runs = group(*entries)
    assert any("in 0.850 ± 0.316 of the plain run's time" in line for line in verdicts(runs, LOSS))
    report = task_report(runs, LOSS)
    assert "| 0.850 ± 0.316 | 0.800 to 0.900 |" in report
    assert "| 0.800 | 0.800 to 0.800 |" in report  # a single seed has none
    for entry in entries:
        records.append(records.file_of(tmp_path, "digits"), entry)
    write_reports(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert (
        "less time than the plain run on 1 (beyond the spread over seeds on 0), under 0.9 of it on 1 (beyond the "
        "spread over seeds on 0);" in text
    )
    assert "0.85 ± 0.32 |" in text
    assert "than the plain run on 1, under 0.9 of it on 1; by" in overview([group(plain(0), one)])


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
    ("short", "drop", "said"),
    [
        (
            0.25,
            0.24,
            "By the mean `auto` beats both controls at its own time: +0.0500 ± 0.0000 nats over `short` (beats)",
        ),
        (
            0.19,
            0.24,
            "**By the mean `auto` does not beat `short` at its own time:** -0.0100 ± 0.0000 nats over `short` "
            "(loses), +0.0400 ± 0.0000 nats over `drop` (beats).",
        ),
        (0.19, 0.18, "does not beat `short` and `drop`"),
    ],
)
def test_the_first_line_says_whether_auto_beats_its_controls(short: float, drop: float, said: str):
    runs = group(*auto_with_controls(0.2, short, drop))
    assert said in verdicts(runs, LOSS)[0]
    assert said in task_report(runs, LOSS).splitlines()[2]


def test_a_mean_within_the_spread_over_seeds_is_no_victory():
    entries = auto_with_controls(0.2, 0.25, 0.24)
    entries[3] = {**entries[3], "final": 0.21}  # `short`: gains of .01 and .05
    runs = group(*entries)
    assert "+0.0300 ± 0.1263 nats over `short` (cannot be told apart)" in verdicts(runs, LOSS)[0]
    assert "| auto | short | +0.0300 ± 0.1263 | cannot be told apart |" in task_report(runs, LOSS)
    one = group(*(entry for entry in entries if entry["seed"] == 0))
    assert "+0.0100 nats over `short` (cannot be told: one seed)" in verdicts(one, LOSS)[0]


@pytest.mark.parametrize(
    ("values", "half_width", "verdict"),
    [
        ([0.1, 0.2], 6.314 * 0.05, comparisons.Verdict.OPEN),
        ([0.1, 0.2, 0.3], 2.92 * 0.1 / 3**0.5, comparisons.Verdict.BEATS),
        ([-0.1, -0.2, -0.3], 2.92 * 0.1 / 3**0.5, comparisons.Verdict.LOSES),
        ([0.0, 0.0], 0.0, comparisons.Verdict.OPEN),
        ([0.1], None, comparisons.Verdict.ONE_SEED),
        ([0.1, float("nan")], None, comparisons.Verdict.DIVERGED),
    ],
)
def test_verdicts_are_by_students_interval(values: list[float], half_width: float | None, verdict: comparisons.Verdict):
    spread = comparisons.Spread.of(values)
    assert spread.half_width == pytest.approx(half_width)
    assert spread.verdict is verdict


def test_it_says_whether_auto_is_within_the_noise_and_what_it_earns_over_a_clock():
    entries = [*auto_with_controls(0.2, 0.25, 0.24), *(record("staged", seed, 0.21, 80) for seed in (0, 1))]
    said = "\n".join(verdicts(group(*entries), LOSS))
    assert (
        "`auto` over 2 seeds: +0.0005 ± 0.0032 nats to plain (cannot be told apart) in 0.900 ± 0.000 of the "
        "plain run's time; by the mean not behind by more than the 0.0007" in said
    )
    assert "over the plain clock `staged`: +0.0100 ± 0.0000 nats (beats); `staged` took 0.800 ± 0.000 of" in said
    bad = verdicts(group(*auto_with_controls(0.203, 0.25, 0.24)), LOSS)
    assert any(
        line.startswith("**`auto` over 2 seeds: -0.0025") and "behind by more than the 0.0007" in line for line in bad
    )
    one = verdicts(group(plain(0), record("auto", 0, 0.19, 90)), LOSS)
    assert any("over 1 seed: +0.0100" in line and "a single seed does not tell" in line for line in one)


def test_it_says_whether_more_steps_are_better_and_still_sooner():
    for final, seconds, said in ((0.19, 99, "better, and sooner"), (0.21, 99, "**"), (0.19, 101, "**")):
        lines = verdicts(group(plain(0), record("auto", 0, 0.2, 90), record("auto+6%", 0, final, seconds)), LOSS)
        assert any("`auto+6%` over 1 seed" in line and said in line for line in lines)


def test_other_constants_have_a_table_of_their_own_beside_the_policy(tmp_path: pathlib.Path):
    wide = [record("wide", seed, 0.19, 80, policy="auto", options={"start": 0.5}) for seed in (0, 1)]
    runs = group(*auto_with_controls(0.2, 0.25, 0.24), *wide, record("auto+6%", 0, 0.2, 95, policy="auto"))
    assert runs.variants == ["wide"]
    own, other = task_report(runs, LOSS).partition("## Other constants")[::2]
    assert "| wide |" not in own and "| auto+6% |" in own
    assert "| auto | its own | 2 | +0.0005 ± 0.0032 |  | 0.900 ± 0.000 | 10.0 % | 1.0 |" in other
    assert (
        '| wide | `{"start": 0.5}` | 2 | +0.0105 ± 0.0032 | +0.0100 ± 0.0000 | 0.800 ± 0.000 | 10.0 % | 1.0 |' in other
    )
    for entry in runs.records:
        records.append(records.file_of(tmp_path, "digits"), entry)
    write_reports(tmp_path)
    assert "`wide`" not in (tmp_path / "README.md").read_text()


def test_other_constants_under_a_policys_own_name_are_seen_and_not_mixed_in_silence(tmp_path: pathlib.Path):
    sooner = {"start": 0.5}
    one = [plain(0), record("auto", 0, 0.2, 90, options=sooner)]
    runs = group(*one)
    assert any('`auto` (`{"start": 0.5}`) over 1 seed' in line for line in verdicts(runs, LOSS))
    assert '| auto (`{"start": 0.5}`) | 1 |' in task_report(runs, LOSS)
    assert not any("Mixed" in line for line in verdicts(runs, LOSS))

    runs = group(*one, plain(1), record("auto", 1, 0.2, 90))
    assert 'Mixed rows: `auto`: seed 0 with `{"start": 0.5}`, seed 1 with its own constants.' in verdicts(runs, LOSS)
    assert '| auto (`{"start": 0.5}`, its own) | 2 |' in task_report(runs, LOSS)
    for entry in runs.records:
        records.append(records.file_of(tmp_path, "digits"), entry)
    write_reports(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "| small | 2, mixed |" in text and '0.90 ± 0.00 (`{"start": 0.5}`, its own) |' in text


def test_the_clock_of_a_bare_schedule_is_its_own_constant():
    clock = {"entries": [{"fraction": at, "module_share": share} for at, share in CLOCK]}
    report = task_report(group(plain(0), record("schedule", 0, 0.2, 90, options=clock)), LOSS)
    assert "| schedule | 1 |" in report
    later = {"entries": [{"fraction": 0.95, "module_share": 1.0}]}
    report = task_report(group(plain(0), record("schedule", 0, 0.2, 90, options=later)), LOSS)
    assert '| schedule (`{"entries": [{"fraction": 0.95' in report


def test_it_says_which_time_is_a_runs_own_and_estimates_what_watching_took_before():
    spent = {"hooks": 0.3, "agreement": 0.6, "start": 5.0}
    shared = record("auto", 0, 0.2, 90, first_step=70, summary={"saved_seconds": 12.0, "spent_seconds": spent})
    runs = group(plain(0), shared, record("plasticity", 0, 0.2, 90))
    assert comparisons.row(runs, "auto", LOSS).watching == pytest.approx(0.9 / 30 * 70 / 100)
    assert comparisons.row(runs, "plasticity", LOSS).watching is None
    assert any(
        "in 0.900 of the plain run's time (its time is its own for the last 30 % of the steps)" in line
        for line in verdicts(runs, LOSS)
    )
    assert "| 30 % | 2.1 % |" in task_report(runs, LOSS)


def test_it_says_which_rows_mix_versions_and_machines(tmp_path: pathlib.Path):
    entries = auto_with_controls(0.2, 0.25, 0.24)
    assert not any("Mixed" in line for line in verdicts(group(*entries), LOSS))

    def elsewhere(entry: dict, **facts: object) -> dict:
        return {**entry, "machine": {**entry["machine"], **facts}}

    newer = [elsewhere(entry, egeria="d") if entry["seed"] == 1 else entry for entry in entries]
    newer.append(record("auto", 2, 0.2, 90))
    newer.append(plain(2))
    lines = verdicts(group(*newer), LOSS)
    assert "Mixed rows: `plain`: seeds 0, 2 by version c, seed 1 by version d." in lines
    assert "Mixed rows: `auto`: seeds 0, 2 by version c, seed 1 by version d; the plain runs likewise." in lines
    assert (
        "Mixed rows: `early`, `short 0.90`, `drop 0.90`: seed 0 by version c, seed 1 by version d; the plain runs "
        "likewise." in lines
    )
    assert "Plain: 0.2003 ± 0.0006 (mixed), 100 s of training" in task_report(group(*newer), LOSS)
    moved = [elsewhere(entries[0], cores=4), *entries[1:5]]
    said = "seed 0 on 2 cores (p), device cpu, torch 2; the plain runs: seed 0 on 4 cores (p), device cpu, torch 2."
    assert any(
        line.startswith("Mixed rows: `auto`, `early`") and line.endswith(said) for line in verdicts(group(*moved), LOSS)
    )
    for entry in newer:
        records.append(records.file_of(tmp_path, "digits"), entry)
    write_reports(tmp_path)
    assert "| small | 3, mixed | 0.2003 ± 0.0006 nats, mixed |" in (tmp_path / "README.md").read_text()


def test_plain_runs_of_other_seeds_are_no_noise_of_a_row():
    elsewhere = {**plain(2, 0.3), "machine": {**plain(2)["machine"], "cores": 4}}
    runs = group(*auto_with_controls(0.203, 0.25, 0.24), elsewhere)
    assert comparisons.row(runs, "auto", LOSS).noise == pytest.approx(0.001 / 2**0.5)
    lines = verdicts(runs, LOSS)
    assert any("behind by more than the 0.0007 that plain runs of its seeds spread by" in line for line in lines)
    assert any("loses clearly" in line and "spread by 0.0007" in line for line in lines)
    (mixed,) = [line for line in lines if line.startswith("Mixed")]
    assert mixed.startswith("Mixed rows: `plain`: seeds 0, 1 on 2 cores")


def test_the_overview_counts_the_tasks_on_which_auto_does_what_it_should(tmp_path: pathlib.Path):
    for entry in auto_with_controls(0.2, 0.25, 0.24):
        records.append(records.file_of(tmp_path, "digits"), entry)
    write_reports(tmp_path)
    assert (
        "Of 1 tasks, `auto` takes less time than the plain run on 1 (beyond the spread over seeds on 1), under "
        "0.9 of it on 0 (beyond the spread over seeds on 0); by the mean it beats both controls of its own "
        "time on 1. Of the 1 with more than one seed, it beats both beyond the spread over seeds on 1, and loses to "
        "one of them on 0; it loses to plain beyond the spread on 0, and its mean quality is within the plain runs' "
        "noise on 1." in (tmp_path / "README.md").read_text()
    )


def test_a_missing_control_is_not_a_victory():
    entries = [entry for entry in auto_with_controls(0.2, 0.25, 0.24) if entry["kind"] != "drop"]
    assert "has not been compared with both" in verdicts(group(*entries), LOSS)[0]
    one_seed_only = [
        entry for entry in auto_with_controls(0.2, 0.25, 0.24) if entry["kind"] != "short" or entry["seed"] == 0
    ]
    assert "has not been compared with both" in verdicts(group(*one_seed_only), LOSS)[0]


def test_what_saves_nothing_is_compared_with_plain():
    runs = group(plain(0, 0.2), record("auto", 0, 0.21, 100))
    assert [duel.gain.mean for duel in comparisons.duels(runs, "auto", LOSS)] == [pytest.approx(-0.01)] * 2
    assert any("does not save time" in line for line in verdicts(runs, LOSS))


def test_a_negative_control_within_the_noise_proves_nothing():
    noisy = group(plain(0, 0.2), plain(1, 0.3), *(record("early", seed, 0.3, 60, "early") for seed in (0, 1)))
    assert any("this task proves nothing" in line for line in verdicts(noisy, LOSS))
    clear = group(*auto_with_controls(0.2, 0.25, 0.24))
    assert any("loses clearly" in line for line in verdicts(clear, LOSS))


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


def test_a_run_that_diverged_is_reported_and_has_not_won(tmp_path: pathlib.Path):
    for entry in auto_with_controls(float("nan"), 0.25, 0.24):
        records.append(records.file_of(tmp_path, "digits"), entry)
    write_reports(tmp_path)
    text = (tmp_path / "digits.md").read_text()
    assert "| auto | 2 | +nan" in text
    assert "does not beat `short` and `drop`" in text
    assert "+nan nats over `short` (cannot be told: a run diverged)" in text


@pytest.mark.parametrize("final", [float("nan"), float("inf")])
@pytest.mark.parametrize("seeds", [[0], [0, 1]])
def test_a_negative_control_that_diverged_loses_clearly(final: float, seeds: list[int]):
    runs = group(
        *(
            entry
            for seed in seeds
            for entry in (
                plain(seed, 0.2 + 0.001 * seed),
                record("early", seed, final if seed == 0 else 0.5, 60, "early"),
            )
        )
    )
    assert "The negative control loses clearly: a run diverged." in verdicts(runs, LOSS)


def test_a_plain_run_that_diverged_is_no_single_seed(tmp_path: pathlib.Path):
    entries = auto_with_controls(0.2, 0.25, 0.24)
    entries[0] = plain(0, float("nan"))
    lines = verdicts(group(*entries), LOSS)
    assert "**Of the negative control nothing can be said: a plain run diverged.**" in lines
    assert any(line.startswith("`auto` over 2 seeds") and "since a plain run diverged" in line for line in lines)
    assert not any("single seed" in line for line in lines)
    for entry in entries:
        records.append(records.file_of(tmp_path, "digits"), entry)
    write_reports(tmp_path)
    assert "quality is within the plain runs' noise on 0." in (tmp_path / "README.md").read_text()


def test_the_notes_of_a_folder_stand_below_the_totals():
    runs = [group(plain(0), record("auto", 0, 0.2, 80))]
    assert "\n\nRecords of old versions are gone.\n\n- " in overview(runs, "Records of old versions are gone.\n")
    assert overview(runs, "") == overview(runs)
