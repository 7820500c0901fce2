"""The files by which the harness and the ranks of a run talk to each other, in a folder of the run."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from bench.harness.processes import Cache, Controller, run_ranks
from bench.harness.runs import Kind, Run, cache_use, controller_flags


@dataclasses.dataclass(frozen=True)
class Job:
    """One run of one task and seed.

    Attributes:
      task, profile: names.
      data: the data folder, or None.
      controller, cache: addresses of the run's own egeria-controller and egeria-cache, or None.
      checkpoint: state of the plain run to start from, or None.
      save_at: steps after which the state is to be saved, by file.
      folder: for what the ranks write.
      turns: address of the TurnGiver of the runs that are trained at the same time, or None; and steps of a turn.
      settings: values of the task's settings that differ from its profile's.
      nudged: whether weights start a rounding step off, which tells how far trainings come apart by nothing.
      variables: of the ranks' environment, by name, beside those that all runs have.
    """

    task: str
    profile: str
    seed: int
    run: Run
    data: str | None
    controller: str | None
    checkpoint: str | None
    save_at: Mapping[str, int]
    folder: str
    turns: str | None = None
    turn_steps: int = 1
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    nudged: bool = False
    cache: str | None = None
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def write(self) -> pathlib.Path:
        """Returns the file that read() takes."""
        file = pathlib.Path(self.folder) / "job.json"
        write_json(file, dataclasses.asdict(self) | {"run": self.run.to_json()})
        return file

    @classmethod
    def read(cls, file: pathlib.Path) -> Job:
        fields = json.loads(file.read_text(encoding="utf-8"))
        return cls(**{**fields, "run": Run.from_json(fields["run"])})

    @property
    def result_file(self) -> pathlib.Path:
        """The file that rank 0 writes at the end."""
        return pathlib.Path(self.folder) / "result.json"


def run_job(job: Job, ranks: int) -> dict[str, Any]:
    """Runs it to its end. Returns what rank 0 reports.

    Raises:
      BenchError: [RUN_FAILED] a rank ended with an error; the end of the log is in the message.
    """
    run_ranks([str(job.write())], ranks, pathlib.Path(job.folder) / "ranks.log", job.variables)
    return json.loads(job.result_file.read_text(encoding="utf-8"))


def run_job_by_itself(job: Job, ranks: int) -> dict[str, Any]:
    """run_job(), with a controller and a cache of its own where the run is a policy's. Raises what that raises."""
    if job.run.kind is not Kind.POLICY:
        return run_job(job, ranks)
    with Controller(pathlib.Path(job.folder), controller_flags(job.run)) as controller:
        return run_job_with_cache(dataclasses.replace(job, controller=controller.address), ranks)


def run_job_with_cache(job: Job, ranks: int) -> dict[str, Any]:
    """run_job(), with a cache of its own unless the run has none, whose processor time is in the result. Raises what
    run_job() raises."""
    if cache_use(job.run) is None:
        return run_job(job, ranks)
    with Cache(pathlib.Path(job.folder)) as cache:
        result = run_job(dataclasses.replace(job, cache=cache.address), ranks)
        return result | {"cache": {**result["cache"], "processor_seconds": cache.processor_seconds()}}


def write_json(file: pathlib.Path, value: Any) -> None:
    """Replaces the file in one piece."""
    part = file.with_name(file.name + ".part")
    part.write_text(json.dumps(value), encoding="utf-8")
    os.replace(part, file)
