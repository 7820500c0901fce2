"""Sessions on two ranks with a controller of their own."""

from __future__ import annotations

import pathlib

import pytest
from session_runs import run, run_under_egeria_run, variables


def test_both_ranks_freeze_and_unfreeze_at_the_same_steps(tmp_path: pathlib.Path):
    records, output = run_under_egeria_run(
        tmp_path, "--egeria", "act", "--steps", 200, "--drop-rate-after", 60, "--pace", 0.03, "--until", "unfreeze"
    )
    first, second = records
    assert first["switches"] == second["switches"] and first["prefixes"] == second["prefixes"]
    assert all(identical for *_, identical in first["switches"])
    assert first["switches"][0][1] == 1
    drop = [entry for entry in first["switches"] if entry[2]]
    assert len(drop) == 1 and drop[0][0] > first["switches"][0][0] + 60 and drop[0][1] == 0
    assert first["summary"]["unfreezes"] == 1 and first["summary"]["ranks_identical"]
    parameters = [name for name in first["weights"] if "running" not in name and "num_batches" not in name]
    assert [first["weights"][name] for name in parameters] == [second["weights"][name] for name in parameters]
    assert output.count(f"egeria: {len(first['losses'])} steps, frozen share ") == 1
    assert "1 unfreeze, 2 ranks identical" in output


@pytest.mark.parametrize("options", ["--model branches", "--model encoder --wrap fsdp2 --optimizer adamw"])
def test_what_cannot_be_recorded_still_freezes_on_both_ranks(options: str, tmp_path: pathlib.Path):
    records, _ = run(tmp_path, "--egeria", "act", "--steps", 80, "--pace", 0.05, "--until", "switch", *options.split())
    assert records[0]["switches"] and records[0]["switches"] == records[1]["switches"]
    assert all(identical for *_, identical in records[0]["switches"])


@pytest.mark.parametrize(
    "broken",
    [
        "egeria.training.step_reports:Reports.end_step",
        "egeria.training.step_reports:Reports.boundary",
        "egeria.training.controller_link:Link.answer_snapshot",
    ],
)
def test_a_rank_in_which_something_fails_goes_on_with_the_others(broken: str, tmp_path: pathlib.Path):
    records, output = run(
        tmp_path, "--egeria", "act", "--steps", 80, "--pace", 0.05, "--until", "switch", "--break", broken
    )
    assert records[0]["switches"] and records[0]["switches"] == records[1]["switches"]
    assert records[0]["prefixes"] == records[1]["prefixes"] and records[0]["summary"]["ranks_identical"]
    assert output.count("ours") == 1


def test_the_ranks_of_a_sharded_model_read_together_or_not_at_all(tmp_path: pathlib.Path):
    """A reading gathers its weights; one rank has no inputs for it from its third step on."""
    records, output = run(
        tmp_path,
        "--egeria",
        "act",
        "--steps",
        30,
        "--pace",
        0.15,
        "--model",
        "encoder",
        "--wrap",
        "fsdp2",
        "--break",
        "egeria.model.inputs:RootInputs.__init__",
    )
    assert [record["prefixes"] for record in records] == [[0] * 30] * 2
    assert output.count("ours") == 1
    plain, _ = run(tmp_path / "plain", "--steps", 30, "--model", "encoder", "--wrap", "fsdp2")
    assert [record["weights"] for record in records] == [record["weights"] for record in plain]


def test_a_rank_that_cannot_tell_its_parameters_is_told_from_one_that_can(tmp_path: pathlib.Path):
    """It fails in the middle of a switch, where the other rank waits for it."""
    plans = ["--egeria", "plans", "--plans", "4:1,8:2,12:1,16:2", "--steps", 20]
    records, output = run(tmp_path, *plans, "--break", "egeria.freeze.replicas:Replicas.hash")
    assert [identical for *_, identical in records[0]["switches"]] == [True, None, None, None]
    assert records[0]["switches"] == records[1]["switches"]
    assert output.count("the ranks' parameters cannot be compared") == 2 and output.count("ours") == 1
    assert records[0]["prefixes"] == records[1]["prefixes"]


@pytest.mark.parametrize("broken", ["_build_params_for_reducer", "_passing_sync_batchnorm_handle"])
def test_a_switch_that_one_rank_cannot_do_leaves_no_trace_on_any(broken: str, tmp_path: pathlib.Path):
    """Before there is another reducer, and when there is one: neither in what is averaged nor in the momentum of what
    was frozen for a moment."""
    plans = ["--egeria", "plans", "--steps", 20, "--plans"]
    broken = f"torch.nn.parallel:DistributedDataParallel.{broken}"
    records, output = run(tmp_path, *plans, "4:1,8:2,12:3,16:1", "--break", broken)
    whole, _ = run(tmp_path / "whole", *plans, "4:1,8:2")
    assert output.count("3 layer modules cannot be frozen, so 2 stay so: ours") == 1
    for one, other in zip(records, whole):
        assert one["prefixes"] == other["prefixes"] and one["losses"] == other["losses"]
        assert one["weights"] == other["weights"]
        assert (one["summary"]["switches_undone"], other["summary"]["switches_undone"]) == (1, 0)


@pytest.mark.parametrize("egeria", ["act", "plans --plans 4:1,8:2"])
def test_uneven_inputs_hold_nobody_up_and_are_told_of(egeria: str, tmp_path: pathlib.Path):
    uneven = ["--steps", 40, "--uneven", 12]
    records, output = run(tmp_path, *uneven, "--egeria", *egeria.split())
    assert [record["prefixes"] for record in records] == [[0] * 40, [0] * 28]
    assert output.count("[UNEVEN_INPUTS]") == 2
    plain, _ = run(tmp_path / "plain", *uneven)
    for one, other in zip(records, plain):
        assert one["losses"] == other["losses"] and one["weights"] == other["weights"]


def test_losses_of_the_first_rank_are_enough(tmp_path: pathlib.Path):
    records, output = run(
        tmp_path, "--egeria", "act", "--steps", 80, "--pace", 0.05, "--until", "switch", "--silent-rank", 1
    )
    assert records[0]["switches"] and records[0]["switches"] == records[1]["switches"]
    assert "no loss is reported" not in output


@pytest.mark.parametrize("egeria", ["act --until unfreeze --pace 0.05", "plans --plans 4:2,30:3"])
def test_ranks_that_see_no_steps_thaw_before_the_same_pass(egeria: str, tmp_path: pathlib.Path):
    records, output = run(tmp_path, "--steps", 40, "--unseen", 4, "--egeria", *egeria.split())
    first, second = records
    assert first["switches"] == second["switches"] and first["prefixes"] == second["prefixes"]
    freeze, thaw = first["switches"][0], first["switches"][-1]
    assert thaw[1:] == [0, True, True] and thaw[0] == freeze[0] + 3
    assert first["prefixes"].index(0, freeze[0]) == freeze[0] + 3 + 16, "16 passes without a step"
    assert output.count("[NO_STEPS]") == 2


PLANS = ("--egeria", "plans", "--plans", "5:1,15:2", "--steps", 25)


def test_nothing_freezes_where_the_ranks_differ_before_the_first_switch(tmp_path: pathlib.Path):
    records, output = run(tmp_path, *PLANS, "--come-apart", 3)
    assert all(record["switches"] == [] and record["prefixes"] == [0] * 25 for record in records)
    assert output.count("[RANKS_DIFFER]") == 2


def test_ranks_that_come_apart_are_stopped(tmp_path: pathlib.Path):
    _, output = run(tmp_path, *PLANS, "--come-apart", 10, code=1)
    assert "[RANKS_DIFFER] step 15: the ranks' parameters differ after a switch to frozen prefix 2" in output


def test_ranks_that_come_apart_while_layers_are_frozen_are_stopped_within_a_thousand_steps(tmp_path: pathlib.Path):
    plans = ("--egeria", "plans", "--plans", "5:1", "--steps", 1100, "--batch-size", 2)
    _, output = run(tmp_path, *plans, "--come-apart", 10, code=1)
    assert "[RANKS_DIFFER] step 1005: the ranks' parameters differ with 1 frozen layer modules" in output


def test_ranks_that_come_apart_go_on_with_what_rank_0_has_if_they_may(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("session_runs.variables", lambda **given: variables(**given, EGERIA_ON_DIVERGENCE="resync"))
    records, output = run(tmp_path, *PLANS, "--come-apart", 10)
    assert [entry[1] for entry in records[0]["switches"]] == [1, 2]
    names = [name for name in records[0]["weights"] if "running" not in name and "num_batches" not in name]
    assert [records[0]["weights"][name] for name in names] == [records[1]["weights"][name] for name in names]
    assert "all ranks go on with what rank 0 has" in output
