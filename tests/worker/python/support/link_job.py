"""A training job without a model of its own kind: two linear layer modules driven through egeria._native.RankLink.

Run alone or under torchrun:
  link_job.py --controller ADDRESS --out FOLDER [--steps N] [--policy JSON] [--reference-here]
              [--end HOW [--end-rank R]]
Each rank writes FOLDER/rank<r>.json: what it was asked and told, at which steps. With --end it ends early instead:
  return        without stop(), from the main module
  exception     an exception in the loop
  wait          waits in commit() for the other ranks, for a signal to come; says so in FOLDER/waiting
  raise-in-wait an exception while the other ranks do not come to the agreement that has begun
  fork          forks a child that uses and drops the link before it exits, then goes on
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import signal
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from egeria import _native
from support.ending import end_process_group

WIDTH = 16


def graph_json() -> str:
    """One linear layer, as protobuf JSON of egeria.v1.ModuleGraph."""
    return json.dumps(
        {
            "inputs": [{"name": "x", "dtype": "DATA_TYPE_FLOAT32", "shape": [-1, WIDTH]}],
            "weights": [{"name": "w", "dtype": "DATA_TYPE_FLOAT32", "shape": [WIDTH, WIDTH]}],
            "nodes": [{"op": "aten::linear", "args": [{"value": "x"}, {"value": "w"}], "outputs": ["y"]}],
            "outputs": ["y"],
        }
    )


def describe_job(rank: int = 0, world_size: int = 1, local_reference: bool = False, **more: Any) -> dict[str, Any]:
    """The job's dict for RankLink."""
    module = {
        "parameter_count": WIDTH * WIDTH,
        "parameter_bytes": 4 * WIDTH * WIDTH,
        "graph_json": None if local_reference else graph_json(),
        "graph_error": None,
        "local_reference": local_reference,
    }
    return {
        "job_id": "00000000-0000-4000-8000-00000000000a",
        "generation": 0,
        "rank": rank,
        "world_size": world_size,
        "training_job": "link",
        "modules": [{"name": "first", **module}, {"name": "last", **module}],
        "policy_json": json.dumps(
            {"plasticity": {"interval_steps": 2, "window": 3, "batch_size": 4, "bootstrap": False}}
        ),
        "total_steps": 0,
        "observe": False,
        "losses_reported": True,
        "step": 0,
        "frozen_prefix": 0,
        "applied_plan": 0,
        **more,
    }


class Job:
    """One rank: two weights that move a little at every step, and a link."""

    def __init__(self, arguments: argparse.Namespace):
        self.local = arguments.reference_here
        self.rank = int(os.environ.get("RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        group = None
        if self.world_size > 1:
            dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=5))
            group = dist.new_group(backend="gloo").group_name
        torch.manual_seed(0)
        self.weights = [torch.randn(WIDTH, WIDTH) / 4 for _ in range(2)]
        self.references: list[torch.Tensor] | None = None
        policy = {"policy_json": arguments.policy} if arguments.policy else {}
        self.link = _native.RankLink(
            describe_job(self.rank, self.world_size, self.local, **policy),
            controller=arguments.controller,
            commit_group=group,
        )
        self.seen: dict[str, Any] = {"sampled": [], "snapshots": [], "plans": [], "offered": 0}
        self.prefix = 0
        self.step = 0

    def run_step(self) -> None:
        """One step: weights move, the link is served."""
        self.step += 1
        sampling = self.link.sampling_for(self.step)
        inputs = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(self.step))
        for weight in self.weights[self.prefix :]:
            weight += 0.1 / (1 + self.step) * torch.randn_like(weight)
        if sampling is not None:
            self.seen["sampled"].append([self.step, sampling.module, sampling.version])
            self.seen["offered"] += self._probe(sampling, inputs)
        wanted = self.link.snapshot_wanted(self.step)
        if wanted is not None:
            self.seen["snapshots"].append([self.step, wanted.module, wanted.version])
            self.references = [weight.clone() for weight in self.weights]
            tensors = [] if self.local else [("w", self.weights[wanted.module])]
            assert self.link.offer_snapshot(wanted, wanted.module, self.step, tensors) == wanted.asked
        plan = self.link.commit(self.step)
        if plan is not None:
            self.seen["plans"].append([self.step, plan.frozen_prefix, plan.plan_id])
            self.link.record_switch(plan.frozen_prefix < self.prefix, self.identical())
            self.prefix = plan.frozen_prefix
        self.link.set_totals(frozen_share=self.prefix / 2, bytes_reduced=0)
        self.link.report(self.step, torch.tensor(1.0 / self.step), [0.1], self.prefix)

    def _probe(self, sampling: _native.SamplingRequest, inputs: torch.Tensor) -> bool:
        def gram(weight: torch.Tensor) -> torch.Tensor:
            output = inputs @ weight.T
            return output @ output.T

        now = gram(self.weights[sampling.module])
        if not self.local:
            return self.link.offer_sample(sampling, self.step, [("x", inputs)], now)
        if self.references is None:
            return False
        then = gram(self.references[sampling.module])
        difference = torch.nn.functional.normalize(now) - torch.nn.functional.normalize(then)
        return self.link.offer_reading(sampling, self.step, float(difference.square().sum() / 16))

    def identical(self) -> bool:
        """Whether all ranks have the same weights."""
        name = dist.group.WORLD.group_name if self.world_size > 1 else None
        return _native.identical_on_all_ranks(_native.hash_tensors(self.weights), name)

    def write(self, folder: pathlib.Path) -> None:
        """FOLDER/rank<r>.json."""
        self.seen["counters"] = self.link.counters()
        self.seen["hash"] = _native.hash_tensors(self.weights)
        (folder / f"rank{self.rank}.json").write_text(json.dumps(self.seen))


def fork_a_child(job: Job) -> None:
    """A child that calls everything, gets nothing, drops the link and ends as a process does."""
    child = os.fork()
    if child == 0:
        assert job.link.sampling_for(2) is None and job.link.snapshot_wanted(2) is None
        assert job.link.commit(job.step + 1) is None
        job.link.report(job.step + 1, None, [], 0)
        job.link.stop(finished=True)
        assert not job.link.counters()["connected"]
        del job.link
        if job.world_size > 1:  # torch's own process groups hang in a child that ends as Python does
            os._exit(17)
        sys.exit(17)
    deadline = time.monotonic() + 300
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 17
            return
        assert time.monotonic() < deadline, "the forked child hangs"
        time.sleep(0.01)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--controller", default="none")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--step-seconds", type=float, default=0.01)
    parser.add_argument("--until-plan", type=int, default=0, help="go on until this plan has been applied")
    parser.add_argument("--policy", help="with its constants, as JSON")
    parser.add_argument("--reference-here", action="store_true")
    parser.add_argument("--end", choices=["return", "exception", "wait", "raise-in-wait", "fork"])
    parser.add_argument("--end-rank", type=int, default=0)
    parser.add_argument("--handle-sigterm", action="store_true", help="its handler ends the program with code 3")
    arguments = parser.parse_args()
    if arguments.handle_sigterm:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    job = Job(arguments)
    ends_here = arguments.end if job.rank == arguments.end_rank else None
    for _ in range(arguments.steps):
        job.run_step()
        time.sleep(arguments.step_seconds)
        if job.step == 20 and ends_here == "return":
            globals()["kept"] = job  # alive until the interpreter's end
            return
        if job.step == 20 and ends_here == "exception":
            raise ValueError("in the loop")
        if job.step == 20 and ends_here == "fork":
            fork_a_child(job)
        # The ranks tell each other what they have at every eighth boundary from the first on, or sooner. A collective
        # that begins after step 25 ends at the boundary after it.
        if job.step == 24 and arguments.end in ("wait", "raise-in-wait"):
            if ends_here is None:  # never comes to its next boundary
                time.sleep(600)
            job.link.commit(25)
            if ends_here == "raise-in-wait":
                raise ValueError("in the loop")
            (arguments.out / "waiting").touch()
            job.link.commit(26)
        if arguments.until_plan and job.seen["plans"] and job.seen["plans"][-1][2] >= arguments.until_plan:
            break
    job.link.stop(finished=True)
    job.write(arguments.out)
    if job.world_size > 1:
        end_process_group()


if __name__ == "__main__":
    main()
