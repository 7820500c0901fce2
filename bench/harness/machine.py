"""A record tells on which machine, and with which versions, it was made."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import platform
import subprocess
from typing import Any

import torch

from bench.harness.runs import Run
from bench.harness.task import Profile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def facts() -> dict[str, Any]:
    """The facts of this machine and this checkout."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "device": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
        "egeria": _revision(),
    }


def settings_hash(profile: Profile) -> str:
    """Changes with all that a profile says, so that records of other settings are not mixed up."""
    return _hash([profile.steps, profile.batch_size, profile.evaluations, dict(profile.settings)])


def run_hash(run: Run) -> str:
    """Changes with all that a run is configured by."""
    return _hash(run.to_json())


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:12]


def _processor() -> str:
    """Its name, and the instructions that torch has kernels for: machines of one name differ in these."""
    name = platform.machine()
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return f"{name} with {torch.backends.cpu.get_cpu_capability()}"


def _revision() -> str:
    """The commit, with "+" where files that are tracked have been changed; in a bundle of tests/gpu/bundle.sh the one
    that it was made from. "unknown" outside a checkout."""
    bundled = ROOT / "REVISION"
    if bundled.exists():
        return bundled.read_text(encoding="utf-8").strip()
    describe = ["git", "-C", str(ROOT), "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"]
    try:
        return subprocess.run(describe, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
