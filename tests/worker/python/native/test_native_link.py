"""egeria._native.RankLink against a real controller, on one rank and on two."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
import torch
from harness import Controller, http_get, metric, wait_until
from launching import Program
from link_job import describe_job, graph_json

from egeria import EgeriaError, _native


def results(folder: pathlib.Path, ranks: int) -> list[dict[str, Any]]:
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]


def readings(controller: Controller) -> list[dict[str, Any]]:
    return [json.loads(line) for line in controller.egeria("export", "link").splitlines()]


@pytest.mark.parametrize("local", [False, True], ids=["controller", "local"])
def test_one_rank_is_sampled_and_frozen(tmp_path: pathlib.Path, controller: Controller, local: bool):
    with Program(
        tmp_path,
        "link_job.py",
        "--controller",
        controller.address,
        "--out",
        tmp_path,
        "--steps",
        100_000,
        "--until-plan",
        1,
        *(["--reference-here"] if local else []),
    ) as program:
        program.succeed()
    (rank,) = results(tmp_path, 1)
    assert [prefix for _, prefix, _ in rank["plans"]] == [1]
    assert rank["snapshots"] and rank["offered"] == len(rank["sampled"]) > 3
    assert all(step % 2 == 0 and module == 0 for step, module, _ in rank["sampled"])
    # Samples that were on their way when the decision was taken are stale; nothing is refused for another reason.
    refused = metric(controller.metrics(), "egeria_uploads_refused_total") or 0
    assert refused == (metric(controller.metrics(), "egeria_uploads_refused_total", reason="stale_request") or 0)
    assert rank["counters"]["frozen_share"] == 0.5
    measured = [line for line in readings(controller) if "plasticity" in line]
    assert len(measured) >= 3 and all(line["plasticity"] >= 0 for line in measured)


@pytest.mark.parametrize("local", [False, True], ids=["controller", "local"])
def test_two_ranks_are_told_the_same_at_the_same_steps(tmp_path: pathlib.Path, controller: Controller, local: bool):
    with Program(
        tmp_path,
        "link_job.py",
        "--controller",
        controller.address,
        "--out",
        tmp_path,
        "--steps",
        100_000,
        "--until-plan",
        1,
        *(["--reference-here"] if local else []),
        ranks=2,
    ) as program:
        program.succeed()
    ranks = results(tmp_path, 2)
    for what in ("sampled", "snapshots", "plans", "hash"):
        assert ranks[0][what] == ranks[1][what], what
    assert ranks[0]["plans"] and len(ranks[0]["snapshots"]) >= 1
    # One rank sends for all.
    assert sorted(rank["offered"] == 0 for rank in ranks) == [False, True]
    assert all(rank["counters"]["freezes"] == 1 and rank["counters"]["checksum_mismatches"] == 0 for rank in ranks)


def test_operators_commands_reach_both_ranks(tmp_path: pathlib.Path, controller: Controller):
    with Program(
        tmp_path,
        "link_job.py",
        "--controller",
        controller.address,
        "--out",
        tmp_path,
        "--steps",
        100_000,
        "--until-plan",
        2,
        "--policy",
        '{"none": {}}',
        ranks=2,
    ) as program:
        wait_until(lambda: controller.egeria("list", "--json"), 300, "the job")
        controller.egeria("pause", "link")
        controller.egeria("freeze", "link", "1")
        wait_until(
            lambda: metric(controller.metrics(), "egeria_frozen_prefix", state="applied") == 1, 300, "the freeze"
        )
        controller.egeria("unfreeze", "link")
        program.succeed()
    ranks = results(tmp_path, 2)
    assert ranks[0]["plans"] == ranks[1]["plans"]
    assert [prefix for _, prefix, _ in ranks[0]["plans"]] == [1, 0]
    assert ranks[0]["counters"]["unfreezes"] == 1


def test_the_job_goes_on_without_a_controller(tmp_path: pathlib.Path):
    with Program(
        tmp_path,
        "link_job.py",
        "--controller",
        f"unix:{tmp_path}/nobody.sock",
        "--out",
        tmp_path,
        "--steps",
        50,
        ranks=2,
    ) as program:
        program.succeed()
        assert "No connection to the controller" in program.text()
    ranks = results(tmp_path, 2)
    assert ranks[0]["hash"] == ranks[1]["hash"] and not ranks[0]["sampled"]


def test_given_plans_take_effect_at_their_steps():
    link = _native.RankLink(describe_job(), controller="none", plans=[(2, 1), (5, 0)])
    plans = {step: link.commit(step) for step in range(1, 7)}
    assert {step: plan.frozen_prefix for step, plan in plans.items() if plan is not None} == {2: 1, 5: 0}
    link.stop(finished=True)


def test_metrics_are_served(tmp_path: pathlib.Path):
    link = _native.RankLink(describe_job(), metrics="127.0.0.1:0")
    link.set_totals(frozen_share=0.25, bytes_reduced=1024)
    link.record_switch(unfreeze=False, identical=True)
    account = _native.TimeLedger()
    account.add_spent("probes", 0.5)
    link.set_account(account)
    link.report(3, None, [0.1], 1)
    text = http_get(f"http://127.0.0.1:{link.counters()['metrics_port']}/metrics")
    assert 'egeria_worker_steps_total{training_job="link"} 3' in text
    assert 'egeria_worker_frozen_parameters_ratio{training_job="link"} 0.25' in text
    assert 'egeria_worker_spent_seconds_total{training_job="link",what="probes"} 0.5' in text


def test_a_metrics_port_that_is_taken_costs_the_metrics_only():
    first = _native.RankLink(describe_job(), metrics="127.0.0.1:0", plans=[(2, 1)])
    second = _native.RankLink(describe_job(), metrics=f"127.0.0.1:{first.counters()['metrics_port']}", plans=[(2, 1)])
    assert second.counters()["metrics_port"] == 0
    second.report(1, None, [0.1], 0)
    assert [link.commit(2).frozen_prefix for link in (first, second)] == [1, 1]


@pytest.mark.parametrize(
    "more, options, name",
    [
        ({"job_id": "no uuid"}, {"controller": "unix:/nowhere"}, "BAD_JOB_ID"),
        ({"frozen_prefix": 2}, {"controller": "unix:/nowhere"}, "BAD_REGISTRATION"),
        ({"policy_json": '{"unknown": {}}'}, {"controller": "unix:/nowhere"}, "BAD_POLICY"),
        ({"world_size": 2}, {"controller": "unix:/nowhere"}, "BAD_LINK"),
        ({}, {"controller": "unix:/nowhere", "plans": [(1, 1)]}, "BAD_LINK"),
        ({}, {"plans": [(1, 2)]}, "BAD_PLANS"),
        ({}, {"commit_group": "unheard of"}, "NO_GROUP"),
        ({}, {"device": "abacus"}, "BAD_DEVICE"),
        ({}, {"metrics": "here"}, "BAD_ADDRESS"),
    ],
)
def test_what_cannot_be_is_an_egeria_error(more: dict[str, Any], options: dict[str, Any], name: str):
    with pytest.raises(EgeriaError) as caught:
        _native.RankLink(describe_job(**more), **options)
    assert caught.value.name == name
    assert str(caught.value).startswith(f"[{name}] ")


def test_a_job_of_the_wrong_form_is_a_python_error():
    with pytest.raises(KeyError, match="generatoin"):
        _native.RankLink(describe_job(generatoin=1))
    with pytest.raises(TypeError, match="rank"):
        _native.RankLink(describe_job(rank="first"))


def test_graphs_are_checked():
    assert _native.check_graph(graph_json()) is None
    assert "[UNKNOWN_OP]" in _native.check_graph(graph_json().replace("aten::linear", "aten::set_"))
    assert "[BAD_GRAPH]" in _native.check_graph("{]")


def test_hashes_tell_tensors_apart():
    tensor = torch.arange(6.0)
    assert _native.hash_tensors([tensor]) == _native.hash_tensors([tensor.clone()])
    assert _native.hash_tensors([tensor]) != _native.hash_tensors([tensor.view(2, 3)])
    assert _native.identical_on_all_ranks(_native.hash_tensors([tensor]))


def test_partition_cuts_by_size_and_by_pattern():
    blocks = [("stem", "stem", 10), ("layer.0", "layer", 500), ("layer.1", "layer", 500), ("head", "head", 100)]
    cuts = _native.partition(blocks)
    assert [begin for _, begin, _ in cuts[1:]] == [end for _, _, end in cuts[:-1]] and cuts[-1] == ("head", 3, 4)
    assert [cut[1:] for cut in _native.partition(blocks, ["stem|layer.*", "head"])] == [(0, 3), (3, 4)]
    with pytest.raises(EgeriaError, match="BAD_PARTITION"):
        _native.partition(blocks, ["("])
