"""Freezing on two ranks, under every wrapper: what ranks_worker.py observes is judged here."""

from __future__ import annotations

import functools
import json
import pathlib
import tempfile
from typing import Any

import pytest
from launching import Program

# Scenarios with the number of their toggles.
EAGER = {
    "ddp": 100,
    "accumulation_and_clipping": 100,
    "static_graph": 100,
    "find_unused": 100,
    "bucket_view": 100,
    "reentrant_checkpoints": 100,
    "checkpoints": 100,
    "wrapped_late": 30,
    "batch_norm": 30,
    "static_graph_with_reentrant_checkpoints": 30,
    "sparse": 30,
}
BFLOAT16 = {"bf16_and_scaler": 100, "all_at_once": 30}
COMPILED = ("compile_inside", "compile_outside")
INDUCTOR = ("inductor_outside",)
SHARDED = {"fsdp2": 100, "fsdp2_unit_across_cuts": 30}
SHORT = (
    "communication_hook",
    "builtin_hook",
    "power_sgd",
    "without_rebuild",
    "without_buffers_of_the_first_rank",
    "local_buffers",
    "switched_before_the_first_step",
    "averaged_by_hand",
    "a_subgroup_trains",
    "copies_of_shards",
    "frozen_apart",
    "wrapped_anew",
    "odd_types",
    "moved_on_one_rank",
)

# One start of the ranks serves several scenarios: importing torch takes longer than most of them.
GROUPS = (tuple(EAGER), (*BFLOAT16, *SHARDED, "many_toggles"), SHORT, COMPILED, INDUCTOR)


@functools.cache
def run_group(names: tuple[str, ...]) -> tuple[dict[str, Any], str]:
    """(facts by scenario, output) of one start of the ranks."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        with Program(
            pathlib.Path(folder),
            "ranks_worker.py",
            report,
            *names,
            ranks=2,
            environment={"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"},
        ) as program:
            program.wait(900)
            return (json.loads(report.read_text()) if report.exists() else {}), program.text()


def facts_of(name: str) -> dict[str, Any]:
    """The facts that the two ranks observed in a scenario."""
    facts, output = run_group(next(group for group in GROUPS if name in group))
    if "failed" in facts.get(name, {"failed": True}):
        pytest.fail(f"{name} failed:\n{facts.get(name, {}).get('failed', output[-4000:])}")
    return facts[name]


def expect_identical_ranks(facts: dict[str, Any], toggles: int) -> None:
    assert facts["toggles"] == toggles
    assert facts["steps"] >= 2 * toggles
    assert facts["identical"] == toggles, "ranks differed after a switch"
    assert facts["constant"] == toggles, "a frozen tensor changed"


def expect_flat_memory(facts: dict[str, Any]) -> None:
    assert facts["more_tensors"] <= 0
    assert facts["more_bytes"] < 32 * 2**20
    assert facts["reducers_alive"] == min(1, facts["reducers_made"])


@pytest.mark.parametrize("name, toggles", EAGER.items())
def test_after_each_toggle_ranks_are_identical_and_gradients_those_of_one_process(name, toggles):
    facts = facts_of(name)
    assert facts["kind"] == "ddp" and facts["reducers_made"] >= toggles
    expect_identical_ranks(facts, toggles)
    assert facts["error"] < 1e-6
    expect_flat_memory(facts)


@pytest.mark.parametrize("name, toggles", BFLOAT16.items())
def test_in_bfloat16_ranks_are_identical_and_gradients_equal_to_its_precision(name, toggles):
    facts = facts_of(name)
    expect_identical_ranks(facts, toggles)
    # A bfloat16 has 8 significant bits: each rank rounds the gradient of its part of the batch by up to 2^-9 of
    # that part, one process that of the whole by 2^-9, and parts that cancel are larger than their sum.
    assert 0 < facts["error_of_all"] < 2**-7
    expect_flat_memory(facts)


def test_a_switch_waits_where_the_scaler_skips_a_step():
    assert facts_of("bf16_and_scaler")["skipped"] > 20


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_models_train_as_if_they_were_not(name):
    facts = facts_of(name)
    expect_identical_ranks(facts, 100)
    assert facts["error"] < 1e-6
    assert facts["graphs"] >= 5  # one at least for each frozen prefix
    assert facts["more_tensors"] < 25  # the compiler keeps some; 50 toggles with one each would be a leak
    assert facts["more_bytes"] < 64 * 2**20 and facts["reducers_alive"] == 1


@pytest.mark.parametrize("name", INDUCTOR)
def test_models_compiled_to_machine_code_train_as_if_they_were_not(name):
    facts = facts_of(name)
    expect_identical_ranks(facts, 10)
    assert facts["error"] < 2e-6  # inductor orders sums its own way
    assert facts["graphs"] >= 2


@pytest.mark.parametrize("name, toggles", SHARDED.items())
def test_sharded_models_need_nothing_but_the_toggles(name, toggles):
    facts = facts_of(name)
    assert facts["kind"] == "fsdp2"
    expect_identical_ranks(facts, toggles)
    assert facts["error_of_all"] < 5e-7
    # 1.1e-6 on a processor where a row's bits depend on the batch's size, of one parameter whose samples nearly cancel.
    assert facts["error"] < 2e-6
    expect_flat_memory(facts)


def test_hundreds_of_toggles_leave_no_reducer_no_tensor_and_no_memory_behind():
    facts = facts_of("many_toggles")
    expect_identical_ranks(facts, 400)
    assert facts["reducers_made"] > 400
    expect_flat_memory(facts)


@pytest.mark.parametrize(
    "name, options",
    {
        "ddp": {},
        "static_graph": {"static_graph": 1},
        "find_unused": {"find_unused_parameters": 1},
        "bucket_view": {"gradient_as_bucket_view": 1},
    }.items(),
)
def test_a_rebuilt_reducer_has_the_options_of_the_first(name, options):
    plain = {
        "static_graph": 0,
        "find_unused_parameters": 0,
        "gradient_as_bucket_view": 0,
        "bucket_cap_bytes": int(0.008 * 2**20),
    }
    assert facts_of(name)["logged"] == {**plain, **options}
    assert not facts_of(name)["claims_order"]


def test_without_the_rebuild_the_ranks_would_drift_apart():
    assert facts_of("without_rebuild") == {"identical": False}


def test_a_communication_hook_is_kept_and_bytes_fall_exactly_with_the_frozen_share():
    facts = facts_of("communication_hook")
    assert all(facts["exact"]) and len(facts["exact"]) == 10
    assert facts["error"] < 1e-6
    assert facts["hooks"] == 1 and facts["logged"] == "counting_hook"


def test_a_builtin_communication_hook_is_kept():
    facts = facts_of("builtin_hook")
    assert facts["logged"] == "BuiltinCommHookType.FP16_COMPRESS"
    assert 1e-6 < facts["error"] < 2e-3  # half precision shows that it is at work


def test_power_sgd_starts_anew_with_the_new_buckets():
    facts = facts_of("power_sgd")
    assert facts == {"identical": [True] * 6, "compressed": [True] * 6}


def test_running_statistics_freeze_as_the_first_rank_has_them():
    assert facts_of("batch_norm")["identical"] == EAGER["batch_norm"]
    without = facts_of("without_buffers_of_the_first_rank")
    assert without == {"identical": False, "parameters_identical": True}


def test_ranks_that_keep_their_own_running_statistics_freeze_the_same_ones():
    assert facts_of("local_buffers") == {"frozen_identical": True, "active_identical": False}


def test_a_switch_before_the_first_step_finds_a_wrapper_that_has_not_run_yet():
    facts = facts_of("switched_before_the_first_step")
    assert facts["identical"] and facts["kind"] == "ddp" and facts["error"] < 1e-6


def test_a_plain_model_whose_gradients_are_averaged_by_hand_is_compared_over_all_ranks():
    facts = facts_of("averaged_by_hand")
    assert facts == {"identical": [True] * 5, "kind": "plain", "group_size": 2, "noticed": True}


def test_copies_of_a_sharded_model_are_compared_shard_by_shard():
    facts = facts_of("copies_of_shards")
    assert facts["identical"] == [True] * 5 and facts["error"] < 1e-6 and facts["noticed"]


def test_ranks_that_freeze_different_layers_of_a_sharded_model_are_noticed():
    assert facts_of("frozen_apart") == {"before": True, "after": False}


def test_a_model_that_one_rank_trains_alone_waits_for_nobody():
    assert facts_of("a_subgroup_trains") == {"alone": True, "identical": True, "untouched": True}


def test_a_wrapper_that_is_made_while_layers_are_frozen_averages_their_gradients_after_the_thaw():
    facts = facts_of("wrapped_anew")
    assert facts["identical"] == [True, True] and facts["error"] < 1e-6


def test_all_ranks_thaw_at_one_step_where_the_optimizer_of_one_moves_what_is_frozen():
    facts = facts_of("moved_on_one_rank")
    assert facts["alike"] and facts["identical"] == [True, True]
    assert facts["prefixes"] == [0] * 3 + [3] * 4 + [0] * 13  # it is moved in the 7th step, and they ask in the 8th


def test_buffers_of_every_type_are_compared_and_shared_and_left_out_where_a_script_changes_them():
    facts = facts_of("odd_types")
    assert facts == dict.fromkeys(facts, [False, True, True]) and len(facts) == 7
