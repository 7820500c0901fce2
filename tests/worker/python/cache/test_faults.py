"""A cache that is harmed in the middle of epochs never gives a wrong activation; frozen_faults.py does more of it."""

from __future__ import annotations

import subprocess

import frozen_faults
import pytest
import torch


@pytest.mark.parametrize("name", frozen_faults.SCENARIOS)
def test_nothing_wrong_is_served(name: str):
    scenario = frozen_faults.SCENARIOS[name]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        report = frozen_faults.run(scenario, epochs=3)
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        pytest.skip(f"needs to make a small file system: {error}")
    finally:
        torch.set_num_threads(threads)
    print(report.line())
    assert report.wrong == 0 and report.same, report
    assert report.served > 0 and report.faults >= scenario.least, report
