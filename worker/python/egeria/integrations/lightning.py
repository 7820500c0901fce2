"""Egeria in Lightning:

trainer = Trainer(..., callbacks=[EgeriaCallback()])
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from typing import Any

from torch import Tensor, nn

try:
    # Two packages offer the same: use that which the user's script has imported.
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        from pytorch_lightning import Callback, LightningModule, Trainer
    else:
        from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError(
        f"egeria.integrations.lightning needs Lightning: pip install 'egeria[lightning]' ({error})"
    ) from error

from egeria import data
from egeria.config import Config
from egeria.errors import EgeriaError
from egeria.model.modules import ModuleSpec, has_parameters
from egeria.training.session import Session, attach

# In the progress bar.
_SHOWN = ("egeria/frozen_share", "egeria/net_saved_seconds")


class EgeriaCallback(Callback):
    """Freezes layers while a Lightning Trainer fits: one device, or the strategies "ddp" and "ddp_spawn".

    The session begins with the training and ends with it. Its state is in each checkpoint, among those of the
    callbacks, from where a resumed fit takes it; a checkpoint that was written without Egeria is resumed with
    nothing frozen, and one that was written with it can be resumed without. The numbers of Session.scalars()
    go to the Trainer's loggers every log_every_n_steps.

    Owned by the training thread. One callback belongs to one Trainer.

    Attributes:
      session: the running session, or the last one; None before the first fit.
      no_sample_ids: why batches have no sample ids (egeria.data), for people; None if they have.
    """

    def __init__(
        self,
        *,
        modules: ModuleSpec = None,
        network: str | None = None,
        config: Config | None = None,
        variants: int | None = None,
        skip_loading: bool = False,
        version: Any = None,
    ):
        """
        Args:
          modules: how to cut the network into layer modules, as for egeria.attach(); names are relative to `network`.
          network: the LightningModule's attribute that holds the network, such as "model"; it must have all parameters
            that train. None: the only attribute with such parameters, or, where there are several, the LightningModule
            itself, which may call self(...) or its parts in its training_step.
          config: None: from the environment. `total_steps` is the Trainer's estimate where it is not given.
          variants: so many fixed variants of each sample stand for its random augmentation (egeria.data.wrap()), with
            and without a cache.
          skip_loading, version: with a cache, samples whose frozen layers it answers for are not loaded, on your word
            that an index names the same sample for ever (egeria.data.wrap()).
        """
        self.session: Session | None = None
        self._modules = modules
        self._network = network
        self._config = config
        self._variants = variants
        self._skipping = {"skip_loading": skip_loading, "version": version}
        self._restored: dict[str, Any] | None = None
        self._steps_seen = 0
        self._loss: Tensor | None = None  # loss of the step under way, over its micro-batches
        self.no_sample_ids: str | None = "there is no cache (Config.cache)"
        self._strategy: Any = None  # the strategy whose process_dataloader() is replaced

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Before the loaders are made."""
        config = self._config if self._config is not None else Config.from_env()
        if stage == "fit" and (config.cache_address() is not None or (self._variants is not None and config.enabled)):
            self._identify_batches(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attaches to the model and the optimizers as the strategy has prepared them.

        Raises:
          EgeriaError: what egeria.attach() refuses; [BAD_NETWORK]; [NO_OPTIMIZER].
        """
        self._end(finished=False)  # a fit before may have ended by an exception
        # Where configure_optimizers() returns None, Lightning puts one in its place that does nothing.
        optimizers = [entry for entry in trainer.optimizers if type(entry).__name__ != "_MockOptimizer"]
        if not optimizers:
            raise EgeriaError(
                "NO_OPTIMIZER",
                "configure_optimizers() returned none, so that nothing trains; return one, or leave the callback out",
            )
        schedulers = [entry.scheduler for entry in trainer.lr_scheduler_configs]
        self.session = attach(
            trainer.strategy.model,
            optimizers,
            modules=self._modules,
            scheduler=schedulers[0] if schedulers else None,
            config=self._config_for(trainer),
            network=_network_of(pl_module, self._network),
        )
        self._steps_seen = trainer.global_step
        self.session.load_state_dict(self._restored or {"step": trainer.global_step})
        self._restored = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Collects the losses of micro-batches, and reports their sum when the optimizer has made its step."""
        if self.session is None:
            return
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, Tensor):
            # Lightning has divided it by the number of micro-batches.
            self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()
        if trainer.global_step == self._steps_seen:
            return
        self._steps_seen = trainer.global_step
        self.session.step(self._loss)
        self._loss = None
        if trainer.is_global_zero and trainer.global_step % max(1, trainer.log_every_n_steps) == 0:
            scalars = self.session.scalars()
            for logger in trainer.loggers:
                logger.log_metrics(scalars, step=trainer.global_step)
            shown = {name: value for name, value in scalars.items() if name in _SHOWN}
            pl_module.log_dict(shown, prog_bar=True, logger=False, on_step=True, on_epoch=False, rank_zero_only=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ends the session; layers that are frozen then train again, should the model be trained further."""
        self._end(finished=True)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._end(finished=False)

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint: the session's state; that of the last session once it has ended."""
        if self.session is not None:
            return self.session.state_dict()
        return self._restored or {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From the checkpoint, before the training starts."""
        self._restored = dict(state_dict)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._leave_loaders()

    def _identify_batches(self, trainer: Trainer) -> None:
        """Wraps the training's loaders (egeria.data.wrap) when the strategy is given them: their sampler is then
        the one that is used, and nobody has iterated over them. Lightning takes no batch ahead of the step from a
        loader whose length is known; where it does, that is noticed, and there are no ids.

        Its fit() raises EgeriaError [NO_SAMPLE_IDS], [BAD_VARIANTS], [NO_SKIP_LOADING] where there can be no variants,
        or nothing can be left out, and that is wanted."""
        self._leave_loaders()
        inner = trainer.strategy.process_dataloader

        @functools.wraps(inner)
        def process_dataloader(dataloader: object) -> object:
            dataloader = inner(dataloader)
            if not trainer.training:
                return dataloader
            try:
                dataloader = data.wrap(dataloader, variants=self._variants, **self._skipping)
                self.no_sample_ids = None
            except EgeriaError as error:
                if self._variants is not None or self._skipping["skip_loading"]:
                    raise
                self.no_sample_ids = str(error)
                data.current().nobody_announces(str(error))
            return dataloader

        trainer.strategy.process_dataloader = process_dataloader
        self._strategy = trainer.strategy

    def _leave_loaders(self) -> None:
        if self._strategy is not None:
            del self._strategy.process_dataloader  # the class's own again
            self._strategy = None

    def _config_for(self, trainer: Trainer) -> Config:
        config = self._config if self._config is not None else Config.from_env()
        if config.total_steps is not None:
            return config
        steps = trainer.estimated_stepping_batches
        return dataclasses.replace(config, total_steps=int(steps)) if 0 < steps < math.inf else config

    def _end(self, finished: bool) -> None:
        if self.session is not None:
            self.session.close(finished=finished)
        self._loss = None


def _network_of(pl_module: LightningModule, name: str | None) -> nn.Module:
    """The module whose forward is the network's: a LightningModule's is often a training_step around it."""
    if name is not None:
        network = getattr(pl_module, name, None)
        if not isinstance(network, nn.Module):
            children = ", ".join(child for child, _ in pl_module.named_children())
            raise EgeriaError(
                "BAD_NETWORK", f"the {type(pl_module).__name__} has no submodule '{name}'; it has: {children}"
            )
        inside = {id(parameter) for parameter in network.parameters()}
        outside = [
            other
            for other, parameter in pl_module.named_parameters()
            if parameter.requires_grad and id(parameter) not in inside
        ]
        if outside:
            raise EgeriaError(
                "BAD_NETWORK",
                f"the parameter '{outside[0]}' is trained but not in '{name}'; give "
                "the submodule that holds all of them, or leave `network` out",
            )
        return network
    holders = [child for child in pl_module.children() if any(p.requires_grad for p in child.parameters())]
    own = any(parameter.requires_grad for parameter in pl_module.parameters(recurse=False))
    if len(holders) != 1 or own or _runs_others(pl_module, holders[0]):
        return pl_module
    return holders[0]


def _runs_others(pl_module: LightningModule, network: nn.Module) -> bool:
    """Whether forward() names submodules beside the one that trains: a frozen trunk in front of it."""
    code = getattr(type(pl_module).forward, "__code__", None)
    named = {name for name, child in pl_module.named_children() if child is not network and has_parameters(child)}
    return code is not None and not named.isdisjoint(code.co_names)
