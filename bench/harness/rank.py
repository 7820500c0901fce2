"""One rank of a run, `torchrun -m bench.harness.rank JOB_FILE`: the loop that a user would write, measured."""

from __future__ import annotations

import collections
import contextlib
import copy
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from bench.harness import schedules
from bench.harness.errors import BenchError
from bench.harness.job import Job, write_json
from bench.harness.processes import end_with_parent
from bench.harness.runs import LAYER_DECAY, Kind, cache_use, frozen_prefix, rates, resolved_options
from bench.harness.states import load_state, save_state
from bench.harness.task import Task
from bench.harness.turns import Turns
from bench.tasks import create

# Steps on a copy of the model before the clock runs: a process's first ones are slow, and a run that starts from a
# checkpoint would have them where the plain run has none.
_WARM_UP = 2


class Trainer:
    """Trains a task's model as `job` says. Every rank has one and calls it alike.

    Attributes:
      seconds: the training time so far, without evaluation and checkpoints; for a run that started from a checkpoint,
        with the plain run's time up to there.
      processor_seconds: as `seconds`, of all threads of this rank's process.
      curve: one entry for each evaluation.
    """

    def __init__(self, job: Job, task: Task, device: torch.device):
        self._job, self._task, self._device = job, task, device
        self._rank, self._world = dist.get_rank(), dist.get_world_size()
        self._rates = rates(job.run, task)
        torch.manual_seed(job.seed)
        self.network = task.build_model().to(device)
        torch.manual_seed(1_000 * (job.seed + 1) + self._rank)  # the ranks' dropout and augmentation differ
        self._model = DistributedDataParallel(
            self.network, device_ids=[device.index] if device.type == "cuda" else None
        )
        self._optimizer = task.optimizer(self._model)
        decay = float(job.run.options.get(LAYER_DECAY, 1.0))
        for above, group in enumerate(reversed(self._optimizer.param_groups)):
            group["lr"] *= decay**above
        self._scheduler = torch.optim.lr_scheduler.LambdaLR(self._optimizer, self._factor)
        self.seconds = self.processor_seconds = 0.0
        self.curve: list[dict[str, Any]] = []
        self._spent: dict[str, float] = {}
        self.first_step = 0
        if job.checkpoint is not None:
            self._load(pathlib.Path(job.checkpoint))
        if job.nudged:
            nudge(self.network)
        self._wrap: Callable[..., DataLoader] | None = None
        if task.variants is not None:
            import egeria

            self._wrap = egeria.data.wrap
        self._batches = self._batches_from(self.first_step)
        self.modules: list[dict[str, Any]] = []
        self.switches: list[dict[str, Any]] = []
        self.summary: dict[str, Any] | None = None
        self.cache: dict[str, Any] | None = None
        self._turns: Turns | None = None

    def train(self) -> None:
        self._warm_up()
        if self._job.turns is not None and self._rank == 0:
            self._turns = Turns(self._job.turns)
        with contextlib.ExitStack() as stack:
            with self._measured():
                session = (
                    None if self._job.run.kind not in (Kind.POLICY, Kind.EARLY) else stack.enter_context(self._attach())
                )
            saves = {step: file for file, step in self._job.save_at.items() if step >= self.first_step}
            evaluations = schedules.evaluation_steps(len(self._rates), self._task.profile.evaluations)
            done = self.first_step
            if done in saves:
                self._save(saves[done], done)
            for stop in sorted({*evaluations, *saves}):
                if stop <= done:
                    continue
                at_once = stop - done if self._job.turns is None else self._job.turn_steps
                for first in range(done, stop, at_once):
                    with self._measured():
                        for _ in range(first, min(stop, first + at_once)):
                            self._train_step(session)
                done = stop
                if stop in evaluations:
                    with self._turn():
                        self.curve.append(self._times() | {"step": stop, **self._evaluate()})
                if stop in saves:
                    self._save(saves[stop], stop)
            if session is not None:
                self._report(session)
        self._spent = self._times()

    def result(self) -> dict[str, Any]:
        """The part of the record that is about the training itself."""
        return {
            "steps": len(self._rates),
            "first_step": self.first_step,
            **self._spent,
            "curve": self.curve,
            "final": self.curve[-1][self._task.quality.name],
            "parameters": sum(parameter.numel() for parameter in self.network.parameters()),
            "modules": self.modules,
            "switches": self.switches,
            "summary": self.summary,
            "cache": self.cache,
        }

    def _attach(self) -> Any:
        import egeria

        run = self._job.run
        modules = len(egeria.model.modules.partition(self.network, self._task.modules))
        options: dict[str, Any] = {"controller": "none", "cache": self._job.cache or "none"}
        if self._job.cache is not None:
            options["cache_use"] = cache_use(run)
            self._wrap = egeria.data.wrap
        if run.kind is Kind.EARLY:
            share, at = self._task.too_early
            step = max(self.first_step + 1, round(at * len(self._rates)))
            options["plans"] = [(step, frozen_prefix(share, modules))]
        elif self._job.controller is not None:
            options.update(controller=self._job.controller, policy=run.policy, options=resolved_options(run, modules))
        session = egeria.attach(
            self._model,
            self._optimizer,
            modules=self._task.modules,
            scheduler=self._scheduler,
            config=egeria.Config(total_steps=len(self._rates), training_job=f"{self._job.task}-{run.label}", **options),
        )
        if self.first_step > 0:
            session.load_state_dict({"step": self.first_step})
        return session

    def _train_step(self, session: Any) -> None:
        loss = self._task.loss(self._model, next(self._batches), self._device)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self._scheduler.step()
        if session is not None:
            session.step(loss)

    def _batches_from(self, step: int) -> Iterator[Any]:
        """This rank's batches of a step and of all that follow it."""
        epoch, first = divmod(step, self._task.training_samples // self._task.profile.batch_size)
        while True:
            yield from self._loader(epoch, first)
            epoch, first = epoch + 1, 0

    def _loader(self, epoch: int, first: int) -> DataLoader:
        """This rank's batches of an epoch, without the `first` ones."""
        # A loader draws its workers' seed, although it has none; the training's own generator shall not notice.
        loader = DataLoader(
            self._task.dataset(), batch_sampler=self._samples(epoch)[first:], generator=torch.Generator()
        )
        if self._wrap is None:
            return loader
        loader = self._wrap(loader, variants=self._task.variants, variant_seed=self._job.seed)
        if self._task.variants is not None:
            loader.set_epoch(epoch)
        return loader

    def _samples(self, epoch: int) -> list[list[int]]:
        """Indices of this rank's training samples, by step of an epoch."""
        size = self._task.profile.batch_size
        order = self._task.order(epoch, torch.Generator().manual_seed(100_003 * self._job.seed + epoch))
        whole = order[: len(order) // size * size].split(size)
        return [batch[self._rank :: self._world].tolist() for batch in whole]

    def _factor(self, step: int) -> float:
        """Learning rate of a step, as a factor of the peak."""
        return self._rates[min(step, len(self._rates) - 1)]

    def _evaluate(self) -> dict[str, float]:
        """The scores of rank 0's model, which all ranks work out together."""
        if self._world > 1:
            for buffer in self.network.buffers():  # the next training pass would do the same
                dist.broadcast(buffer, 0)
        self.network.eval()
        samples = torch.arange(self._rank, self._task.validation_samples, self._world)
        with torch.no_grad():
            sums = self._task.evaluate(self.network, samples, self._device).double().cpu()
        self.network.train()
        if self._world > 1:
            dist.all_reduce(sums)
        return self._task.scores(sums)

    def _warm_up(self) -> None:
        """A few steps that leave nothing behind."""
        state, on_device = torch.get_rng_state(), torch.cuda.get_rng_state_all()
        network = copy.deepcopy(self.network)
        for samples in self._samples(0)[:_WARM_UP]:
            self._task.loss(network, self._task.batch(torch.tensor(samples)), self._device).backward()
        torch.set_rng_state(state)
        torch.cuda.set_rng_state_all(on_device)

    @contextlib.contextmanager
    def _measured(self) -> Iterator[None]:
        """Adds what it takes to the training's seconds; in a turn."""
        with self._turn():
            begin, processor = self._clock(), time.process_time()
            yield
            self.processor_seconds += time.process_time() - processor
            self.seconds += self._clock() - begin

    def _times(self) -> dict[str, float]:
        """The training time so far, and the mean processor time of the ranks, which call this alike."""
        processor = torch.tensor(self.processor_seconds, dtype=torch.float64)
        dist.all_reduce(processor)
        return {"seconds": self.seconds, "processor_seconds": processor.item() / self._world}

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """While others that are trained at the same time, if there are any, wait."""
        if self._job.turns is None:
            yield
            return
        with contextlib.nullcontext() if self._turns is None else self._turns.taken():
            self._clock()  # the other ranks wait for the turn, too
            yield

    def _clock(self) -> float:
        """Seconds, at a moment that all ranks have reached."""
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        if self._world > 1:
            dist.barrier()
        return time.perf_counter()

    def _save(self, file: str, step: int) -> None:
        save_state(
            pathlib.Path(file),
            self.network,
            self._optimizer,
            self._scheduler,
            self._times() | {"step": step, "curve": self.curve},
        )

    def _load(self, file: pathlib.Path) -> None:
        kept = load_state(file, self.network, self._optimizer, self._scheduler)
        self.first_step, self.seconds, self.curve = kept["step"], kept["seconds"], kept["curve"]
        self.processor_seconds = kept["processor_seconds"]
        for group, peak in zip(self._optimizer.param_groups, self._scheduler.base_lrs):
            group["lr"] = peak * self._factor(self.first_step)  # a control goes on at another rate

    def _report(self, session: Any) -> None:
        self.modules = [{"name": module.name, "parameters": module.parameter_count()} for module in session.modules]
        self.switches = [{"step": switch.step, "frozen_prefix": switch.frozen_prefix} for switch in session.switches]
        self.summary = session.summary()
        if self._job.cache is not None:
            of_ranks: list[Any] = [None] * self._world
            dist.all_gather_object(of_ranks, self.summary["cache"] or {})
            self.cache = collections.Counter()
            for counts in of_ranks:
                self.cache.update({name: value for name, value in counts.items() if isinstance(value, (int, float))})


def nudge(network: nn.Module) -> None:
    """Sets each weight to the next greater number."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(parameter.nextafter(torch.tensor(torch.inf, device=parameter.device)))


def _check_data(task: Task) -> None:
    sums: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(sums, task.checksum())
    if len(set(sums)) > 1:
        raise BenchError(
            "DATA_DIFFERS",
            "the ranks have read different data; give all of them the same folder and "
            "the same versions of the packages",
        )


def _end_process_group() -> None:
    """Ends it once its threads rest: see wait_for_collectives()."""
    with contextlib.suppress(ImportError):  # plain runs do without the package
        from egeria.training.process_exit import wait_for_collectives

        wait_for_collectives(patience=300)
    dist.destroy_process_group()


def main() -> None:
    end_with_parent()
    job = Job.read(pathlib.Path(sys.argv[1]))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    devices = torch.cuda.device_count()
    device = torch.device("cuda", local % devices) if devices else torch.device("cpu")
    if devices:
        torch.cuda.set_device(device)
    nccl = devices >= int(os.environ["WORLD_SIZE"])  # NCCL wants a device for each rank
    dist.init_process_group("cpu:gloo,cuda:nccl" if nccl else "gloo")
    task = create(job.task, job.profile, None if job.data is None else pathlib.Path(job.data), job.settings)
    task.load()
    _check_data(task)
    trainer = Trainer(job, task, device)
    trainer.train()
    if dist.get_rank() == 0:
        write_json(job.result_file, trainer.result())
    dist.barrier()
    _end_process_group()


if __name__ == "__main__":
    main()
