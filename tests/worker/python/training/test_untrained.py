"""Parameters in no optimizer count as frozen by the script, and weights stay the plain script's, to the bit."""

from __future__ import annotations

import copy
import json
import pathlib
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from cache_daemon import Daemon
from example_scripts import run
from launching import HERE, Program
from torch import nn
from untrained_alone import Part

from egeria.freeze import wishes
from egeria.freeze.wishes import has_gradient as is_on

JOB = "untrained_job.py"
# In these, nothing reads the gradients of what is in no optimizer. Behind each stand the layer modules that count as
# frozen at the end, and the epochs in which passes may be skipped. In the last of these some are.
SERVED = {
    "zero_first": (4, [1, 2, 3, 4]),
    "zero_last": (4, [1, 2, 3, 4]),
    "neck_and_head": (3, [1, 2, 3, 4]),
    "model_cleared": (0, [1, 2]),
    "added_later": (2, [1, 2, 3, 4]),
    "made_later": (0, [1, 2]),
    "put_in_by_hand": (3, [1, 2, 3, 4]),
    "narrowed_later": (4, [2, 3, 4]),
    "tied": (3, [1, 2, 3, 4]),
    "frozen_and_thawed": (4, [1, 2, 3, 4]),
}
# In these they are read, or may be, or the weights move all the same.
COMPUTED = {
    "added_with_what_has_gathered": "an optimizer may get them later",
    "two_from_the_start": None,
    "moved_without": None,
    "clipped": "untrained_job.py:",
    "clipped_later": "names 'clip_grad_norm_'",
    "clipped_by_a_helper": "names 'grad'",
    "logged": "names 'grad'",
    "moved_by_hand": "so nothing freezes in this training",
    "asked_for": "names 'grad'",
    "hooked": "a hook of the backward pass",
}


def both(way: str, daemon: Daemon, folder: pathlib.Path, *options: str) -> tuple[list[dict[str, Any]], str]:
    """The reports of the ranks and what was told; after a comparison with the plain script's."""
    reports = []
    for kind, more in (("plain", ()), ("cached", ("--cache", daemon.address))):
        (folder / kind).mkdir()
        ranks = 2 if "--ranks" in options else 1
        with Program(folder, JOB, folder / kind, way, *options, *more, ranks=ranks) as program:
            program.succeed()
        reports.append([json.loads(path.read_text()) for path in sorted((folder / kind).glob("*.json"))])
    for plain, cached in zip(*reports):
        assert [plain[key] == cached[key] for key in ("weights", "log", "random")] == [True] * 3
    return reports[1], program.text()


def is_served(report: dict[str, Any], epochs: list[int]) -> bool:
    """Whether passes were skipped in the last of these epochs, and in none that is not among them."""
    skipped = report["skipped"]
    found = {epoch for epoch in range(1, len(skipped)) if skipped[epoch] > skipped[epoch - 1]}
    return found <= set(epochs) and found.issuperset(epochs[-1:])


@pytest.mark.parametrize("way", SERVED)
def test_what_nothing_takes_is_served(way: str, cache_daemon: Daemon, tmp_path: pathlib.Path):
    (report,), text = both(way, cache_daemon, tmp_path)
    prefix, epochs = SERVED[way]
    assert report["summary"]["frozen_by_script"] == prefix and is_served(report, epochs), (report, text)
    assert "PARAMETER_WITHOUT_OPTIMIZER" not in text
    if prefix:
        assert "by the script" in report["progress"]


@pytest.mark.parametrize("way", COMPUTED)
def test_what_something_may_take_is_computed(way: str, cache_daemon: Daemon, tmp_path: pathlib.Path):
    (report,), text = both(way, cache_daemon, tmp_path)
    reason = COMPUTED[way]
    assert report["skipped"][-1] == 0, report
    assert "PARAMETER_WITHOUT_OPTIMIZER" not in text if reason is None else reason in text, text


@pytest.mark.parametrize("way", ["zero_first", "added_later", "made_later", "logged", "model_cleared"])
def test_two_ranks_do_the_same(way: str, cache_daemon: Daemon, tmp_path: pathlib.Path):
    for report in both(way, cache_daemon, tmp_path, "--ranks")[0]:
        assert is_served(report, SERVED.get(way, (0, []))[1]), report
        assert report["summary"]["ranks_identical"]


def test_an_option_to_clip_is_in_the_way_where_it_is_set(cache_daemon: Daemon, tmp_path: pathlib.Path):
    (report,), text = both("zero_first", cache_daemon, tmp_path, "--clip", "0.5")
    assert report["skipped"][-1] == 0 and "torch.nn.utils.clip_grad, called at untrained_job.py:" in text, text


@pytest.mark.parametrize("options", [(), ("--ranks",)])
def test_a_compiled_model_is_left_alone(options: tuple[str, ...], cache_daemon: Daemon, tmp_path: pathlib.Path):
    reports, text = both("zero_first", cache_daemon, tmp_path, "--compile", *options)
    assert all(report["skipped"][-1] == 0 for report in reports) and "compiled code would round otherwise" in text


def test_layers_that_are_frozen_and_thawed_are_still_trained_by_nothing(cache_daemon: Daemon, tmp_path: pathlib.Path):
    """A plan freezes the trunk beyond what has no optimizer, and thaws it. Then the third epoch keeps most samples and
    the fourth one the others, so that the last is served where samples cannot be computed alone, too."""
    (report,), _ = both("zero_first", cache_daemon, tmp_path, "--plans", "[[10, 2], [18, 0]]")
    assert report["summary"]["frozen_by_script"] == 4 and is_served(report, [1, 2, 3, 4]), report


def test_a_short_script_gets_faster_and_trains_the_same(tmp_path: pathlib.Path):
    reports, weights = [], []
    for kind in ("--plain", "--cached"):
        (out := tmp_path / kind).mkdir()
        variables = {"EGERIA_CACHE": str(tmp_path / "store"), "EGERIA_POLICY": "none"}
        done = run([sys.executable, HERE / "head_only.py", out, kind], tmp_path, **variables)
        assert done.returncode == 0, done.stderr
        reports.append(json.loads((out / "report.json").read_text()))
        weights.append(torch.load(out / "weights.pt"))
    assert all(map(torch.equal, weights[0].values(), weights[1].values()))
    (plain, cached), progress = (report["seconds"] for report in reports), reports[1]["progress"]
    assert "by the script" in progress and cached[4] < 0.5 * plain[4] and cached[4] < 0.5 * cached[0], reports


@pytest.mark.parametrize("option,advised", [("--unwrapped", True), ("--wrapped", False)])
def test_a_script_that_wraps_no_loader_is_told_what_that_would_save(option: str, advised: bool, tmp_path: pathlib.Path):
    variables = {"EGERIA_CACHE": str(tmp_path / "store"), "EGERIA_POLICY": "none"}
    done = run([sys.executable, HERE / "head_only.py", tmp_path, option], tmp_path, **variables)
    assert done.returncode == 0 and ("egeria.data.wrap(loader)" in done.stdout + done.stderr) == advised, done.stderr


def test_the_script_reads_what_it_has_asked_for():
    model = Part()
    wishes.hide(weight := model.first.weight)
    try:
        assert weight.requires_grad and not is_on(weight)
        assert pickle.loads(pickle.dumps(model)).first.weight.requires_grad
        assert copy.deepcopy(model).first.weight.requires_grad
        model.requires_grad_(True)
        assert not is_on(weight)
        model.first.requires_grad_(False)
        assert not weight.requires_grad
        model.requires_grad_(True)
    finally:
        wishes.show(weight, is_frozen=False)
    assert is_on(weight) and "requires_grad" not in vars(nn.Parameter)


def test_in_a_process_of_its_own():
    """Code that other tests have loaded would count as the script's."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", HERE / "untrained_alone.py"]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0 and "2 passed" in result.stdout, result.stdout
