"""A Switcher changes what is frozen on all ranks at once, or on none."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import sys
from collections.abc import Callable, Sequence

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from egeria import _native
from egeria.freeze import wishes
from egeria.freeze.checks import check, check_cut
from egeria.freeze.freezer import Freezer
from egeria.freeze.keeper import Keeper
from egeria.freeze.packed_tensors import PackedTensors
from egeria.freeze.rank_agreement import all_agree, commit_group, gather, take_from_rank_0
from egeria.freeze.reducer_rebuild import Rebuilt
from egeria.freeze.replicas import Replicas
from egeria.model.modules import LayerModule, trained_in
from egeria.model.parameter_uses import Uses, place
from egeria.tell_once import TellOnce

_logger = logging.getLogger("egeria")


@dataclasses.dataclass(frozen=True)
class Switch:
    """One change of what is frozen.

    Attributes:
      step: optimizer steps done when it took effect.
      frozen_prefix: layer modules 0..frozen_prefix-1 are frozen since.
      unfreeze: there are fewer frozen than before.
      ranks_identical: all ranks had the same parameters after it; None: they could not be compared.
    """

    step: int
    frozen_prefix: int
    unfreeze: bool
    ranks_identical: bool | None


class Switcher:
    """Freezes and unfreezes the layer modules of a model together with the gradient reducer of its wrapper.

    Owned by the training thread. To be used between steps only.

    Attributes:
      modules: the layer modules, in forward order.
      replicas: the ranks' copies of the model.
      group: of the ranks, for agreements; None until share_group(), and for one process.
      ranks: how many there are in it.
      job_id: the job's, where it has none one of this process; the same on all ranks from settle_job_id() on.
      job_secret: shows the controller that a rank belongs to the job; likewise.
      cache_namespace: a checkpoint's; None: there was none. The same on all ranks from share_group() on.
      undone: how many switches a rank could not make, so that all undid them. After one, nothing switches any more.
      keeper: sees to it that what is frozen stays as it is.
      switched_at: the step of the newest switch.
    """

    def __init__(
        self, model: nn.Module, optimizers: Sequence[Optimizer], modules: Sequence[LayerModule], tell: TellOnce
    ):
        """`model` is with its wrappers, and `optimizers` are those of now, at any time. Raises EgeriaError where the
        model cannot be frozen; see freeze.checks.check()."""
        self.replicas = Replicas(model)
        self.group: dist.ProcessGroup | None = None
        self.ranks = 1
        self.job_id: str = os.environ.get("EGERIA_JOB_ID") or _native.random_job_id()
        self.job_secret: str = os.environ.get("EGERIA_JOB_SECRET") or _native.random_token()
        self.cache_namespace: str | None = None
        self._is_settled = False
        self._pinned: list[nn.Module] = []
        self._model = model
        self.optimizers = optimizers
        self._tell = tell
        self.undone = 0
        self._is_over = False  # nothing freezes any more
        self.switched_at = 0
        self.keeper = Keeper(tell)
        self._were_identical: bool | None = None  # the ranks before the first switch; None: not compared yet
        self._trained = trained_in(self.replicas.root)
        check(model, optimizers, modules, self.replicas)
        self.take(modules)

    def take(self, modules: Sequence[LayerModule]) -> None:
        """Cuts the model in another way, while nothing is frozen. The script may have switched gradients off for the
        moment. Raises EgeriaError as freeze.checks.check_cut() does."""
        check_cut(modules, self.replicas)
        self.modules = list(modules)
        pinned, self._pinned = self._pinned, []
        if pinned:
            self.pin([])
        self._freezer = Freezer(self.modules, self.optimizers)
        self.pin(pinned)
        self._count_anew()

    def place(self, uses: Uses) -> None:
        """Gives parameters to the last layer module that uses them, as far as a pass has shown the same to all ranks.
        A collective; once something is frozen, it changes nothing."""
        group = self.share_group()
        if self.prefix == 0:
            placed = place(self.modules, uses)
            found = gather(group, [module.names() for module in placed])
            if all(other == found[0] for other in found):
                self.take(placed)

    @property
    def prefix(self) -> int:
        """Number of frozen layer modules, from the front."""
        return self._freezer.prefix

    # Counting takes a while, so that it is done once per switch.

    @functools.cached_property
    def frozen_share(self) -> float:
        """Share of the parameters that train which is frozen, 0..1."""
        return self._freezer.frozen_share

    @functools.cached_property
    def trains(self) -> list[bool]:
        """For each layer module, whether it has a parameter that trains, did so at the start (gradients may be off for
        a moment), or would if it were not frozen."""
        trained = self._trained.union(map(id, self._freezer.unfrozen_by(self.modules[: self.prefix])))
        return [any(p.requires_grad or id(p) in trained for _, p in module.parameters()) for module in self.modules]

    @functools.cached_property
    def gradient_bytes(self) -> int:
        """The bytes that a step reduces among the ranks."""
        return self.replicas.gradient_bytes if self.group is not None else 0

    def _count_anew(self) -> None:
        for name in ("frozen_share", "trains", "gradient_bytes"):
            self.__dict__.pop(name, None)

    def unfrozen_by(self, first: int) -> list[nn.Parameter]:
        """Parameters that would train again if only `first` layer modules were frozen."""
        return self._freezer.unfrozen_by(self.modules[first : self.prefix])

    def pin(self, modules: Sequence[nn.Module]) -> None:
        """Holds these modules in evaluation mode, too, which the script has frozen; and no others that it has."""
        self._pinned = list(modules)
        self._freezer.pin(modules)

    def hold(self) -> None:
        """Before a training forward pass: frozen layers are in the modes that they were frozen in, and have no
        gradients."""
        self.keeper.begin_pass()
        if self._freezer.holds:
            self._freezer.hold()

    def begin_other_pass(self) -> None:
        """Before a forward pass that is not training's: frozen layers are in the modes that the script asks for."""
        if self._freezer.holds:
            self._freezer.begin_other_pass()

    def end_pass(self) -> None:
        """Behind a training forward pass."""
        self._freezer.end_pass()

    def allow_recompiles(self) -> None:
        """Room for a compiled version of the model at each frozen prefix, where it may be compiled."""
        if "torch._dynamo" in sys.modules:
            self.replicas.allow_recompiles(len(self.modules))

    def settle_job_id(self, number: int) -> None:
        """Takes one job's id on all ranks as soon as there is a process group, before share_group(). Waits for nobody.
        `number` is the session's in this process."""
        if self._is_settled or self.replicas.process_group is None:
            return
        self._is_settled = True
        if "EGERIA_JOB_ID" not in os.environ:
            store = dist.distributed_c10d._get_default_store()
            first = dist.get_process_group_ranks(self.replicas.process_group)[0]
            self.job_id = store.compare_set(f"egeria/job/{number}/{first}", "", self.job_id).decode()

    def share_group(self) -> dist.ProcessGroup | None:
        """The group for agreements, made at the first call, which is a collective."""
        if self.group is None:
            self.group = commit_group(self.replicas.process_group)
            self.ranks = dist.get_world_size(self.group) if self.group is not None else 1
            if self.group is not None:
                ids = [self.job_id, self.job_secret, self.cache_namespace]
                dist.broadcast_object_list(ids, src=dist.get_global_rank(self.group, 0), group=self.group)
                self.job_id, self.job_secret, self.cache_namespace = ids
        return self.group

    def set(self, prefix: int) -> None:
        """Sets what is frozen without asking other ranks: at a resume, and at the end. EgeriaError [BAD_PREFIX] and any
        other exception change nothing."""
        self._change(prefix).keep()
        self._begin_prefix()

    def _begin_prefix(self) -> None:
        """The frozen layers have the values that they are to keep."""
        frozen = set(self._freezer.unfrozen_by(self.modules[: self.prefix]))
        self.keeper.begin(self.modules[: self.prefix], frozen)
        self._count_anew()

    def _change(self, prefix: int) -> Rebuilt:
        """Freezes another prefix on this rank. An exception changes nothing."""
        before = self.prefix
        try:
            if not self._freezer.apply(prefix):
                return Rebuilt()
            rebuilt = self.replicas.rebuild()
        except BaseException:
            self._freezer.take_back(before)
            raise
        return rebuilt

    def _go_back(self, prefix: int, rebuilt: Rebuilt) -> None:
        """After _change() on this rank, or an attempt, where others could not."""
        try:
            rebuilt.undo()
        finally:
            self._freezer.take_back(prefix)

    def switch(self, prefix: int, step: int) -> Switch | None:
        """Freezes another prefix on all ranks, or on none if one of them cannot: then never again. A collective. The
        native trainer follows the same protocol: see worker/commit/rank_change.h.

        Args:
          step: optimizer steps done.

        Returns:
          What has changed; None if nothing has.
        """
        before = self.prefix
        if prefix == before or self.undone or self._is_over or not self._start_identical():
            return None
        doubtful = set(self._freezer.doubtful())
        buffers, rebuilt = PackedTensors([], None), Rebuilt()

        def change() -> None:
            nonlocal buffers, rebuilt
            buffers = self.replicas.pack_buffers(self.modules[before:prefix])
            rebuilt = self._change(prefix)

        def go_back() -> None:
            self.undone += 1
            self._go_back(before, rebuilt)

        if not self._on_all_or_none(change, go_back, f"{prefix} layer modules cannot be frozen, so {before} stay so"):
            return None
        rebuilt.keep()
        buffers.share()
        self.switched_at = step
        self._begin_prefix()
        self._tell_of_doubts(doubtful.difference(self._freezer.doubtful()))
        _logger.debug("egeria: step %d: frozen prefix %d", step, prefix)
        return Switch(step, prefix, prefix < before, self.are_identical())

    def _on_all_or_none(self, change: Callable[[], None], go_back: Callable[[], None], otherwise: str) -> bool:
        """Changes something on all ranks, or on none: where one of them cannot, all go back, and say `otherwise`. A
        collective; returns whether it is changed."""
        failure: Exception | None = None
        try:
            change()
        except Exception as error:  # pylint: disable=broad-exception-caught  # the other ranks wait for this one
            failure = error
        agreed = False
        try:
            agreed = all_agree(self.group, failure is None)
        finally:
            if not agreed:
                go_back()
        if not agreed:
            self._tell(otherwise, failure)
        return agreed

    def thaw_if_moved(self, step: int) -> Switch | None:
        """Where an optimizer has moved what is frozen, on this rank or another, everything trains again on all ranks,
        and nothing freezes any more. A collective; returns what has changed, as switch() does."""
        moved = self.keeper.moved is not None
        if all_agree(self.share_group(), not moved):
            return None
        if not moved:
            self._tell(
                "[OPTIMIZER_MOVES_FROZEN] on another rank an optimizer has moved a frozen layer; everything trains "
                "again, and nothing freezes from here on"
            )
        switch = self.switch(0, step)
        self._is_over = True
        return switch

    def hide(self, parameters: Sequence[nn.Parameter]) -> bool:
        """Switches gradients that nothing takes off, unseen by the script, on all ranks or on none. Returns whether
        they are. A collective."""
        rebuilt = Rebuilt()

        def change() -> None:
            nonlocal rebuilt
            for parameter in parameters:
                wishes.hide(parameter)
            rebuilt = self.replicas.rebuild()

        def go_back() -> None:
            for parameter in parameters:
                wishes.show(parameter, is_frozen=False)
            rebuilt.undo()

        if not self._on_all_or_none(change, go_back, "gradients that nothing takes cannot be switched off"):
            return False
        rebuilt.keep()
        self._count_anew()
        return True

    def show(self, parameters: Sequence[nn.Parameter]) -> None:
        """Undoes hide() on this rank for some of them. No collective; all ranks do so before the same pass."""
        frozen = {id(value) for module in self.modules[: self.prefix] for _, value in module.parameters()}
        for parameter in parameters:
            wishes.show(parameter, id(parameter) in frozen)
        self.replicas.rebuild().keep()
        self._count_anew()

    def _tell_of_doubts(self, names: set[str]) -> None:
        if names:
            self._tell(
                f"the script has set requires_grad=False, as it had read it, for {len(names)} frozen parameters, such "
                f"as '{min(names)}'; they train again. Set it once more if they are to stay frozen"
            )

    def are_identical(self) -> bool | None:
        """Whether all ranks have the same parameters, and the same buffers of what is frozen; None, on all ranks, where
        one of them cannot tell its own. A collective."""
        with self._tell.guard("the ranks' parameters cannot be compared"):
            frozen, own_buffers = self.modules[: self.prefix], self.keeper.own_buffers
            return self.replicas.identical_on_all_ranks(frozen, self.group, own_buffers)
        return None

    def _start_identical(self) -> bool:
        """Whether all ranks were alike before the first switch: only then is anything frozen."""
        if self._were_identical is None:
            self._were_identical = self.are_identical()
            if self._were_identical is False:
                self._tell(
                    "[RANKS_DIFFER] the ranks' parameters differ although nothing has been switched, so nothing "
                    "freezes; give all ranks the same weights at the start, as DistributedDataParallel does"
                )
        return self._were_identical is not False

    def resync(self) -> bool | None:
        """Gives every rank the parameters, the buffers and the optimizers' states of rank 0, and returns whether all
        are alike then. A collective. A sharded model stays as it is: no rank has all of it."""
        if self.group is not None and self.replicas.kind != "fsdp2":
            take_from_rank_0(self.group, self._model, self.optimizers)
            self._begin_prefix()
        return self.are_identical()
