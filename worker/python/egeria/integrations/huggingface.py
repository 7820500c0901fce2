"""Egeria in the Trainer of Hugging Face Transformers:

trainer = Trainer(..., callbacks=[EgeriaCallback()])
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import logging
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

try:
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ImportError(
        "egeria.integrations.huggingface needs Transformers and Accelerate: "
        f"pip install 'egeria[huggingface]' ({error})"
    ) from error

from egeria import data
from egeria.config import Config
from egeria.errors import EgeriaError
from egeria.model.modules import ModuleSpec
from egeria.training.session import Session, attach

_logger = logging.getLogger("egeria")

# The entry of trainer_state.json's stateful_callbacks. It is no callback's name, so that the Trainer does not try
# to make the callback itself anew (restore_callback_states_from_checkpoint), for which it needs JSON arguments.
_STATE_KEY = "egeria"


class EgeriaCallback(TrainerCallback):
    """Freezes layers while a Trainer trains: one process, or DistributedDataParallel or FSDP2 under accelerate.

    The session begins with the training and ends with it. Its state is in each checkpoint's trainer_state.json,
    from where a resumed training takes it; a checkpoint that was written without Egeria is resumed with nothing
    frozen, and one that was written with it can be resumed without. The numbers of Session.scalars() go to
    the Trainer's loggers together with the loss.

    Owned by the training thread. One callback belongs to one Trainer.

    Attributes:
      session: the running session, or the last one; None before the first training.
      no_sample_ids: why batches have no sample ids (egeria.data), for people; None if they have.
    """

    def __init__(
        self,
        *,
        modules: ModuleSpec = None,
        config: Config | None = None,
        variants: int | None = None,
        skip_loading: bool = False,
        version: Any = None,
    ):
        """
        Args:
          modules: how to cut the model into layer modules, as for egeria.attach().
          config: None: from the environment. `total_steps` and `training_job` are the Trainer's max_steps and run_name
            where they are not given.
          variants: so many fixed variants of each sample stand for its random augmentation (egeria.data.wrap()), with
            and without a cache.
          skip_loading, version: with a cache, samples whose frozen layers it answers for are not loaded, on your word
            that an index names the same sample for ever (egeria.data.wrap()).
        """
        self.session: Session | None = None
        self._modules = modules
        self._config = config
        self._variants = variants
        self._skipping = {"skip_loading": skip_loading, "version": version}
        self._trainer: Trainer | None = None
        self._loss: Tensor | None = None  # loss of the step under way, over its micro-batches
        self.no_sample_ids: str | None = "there is no cache (Config.cache)"
        self._marks: data.Marks | None = None

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        optimizer: Optimizer | None = None,
        lr_scheduler: Any = None,
        **kwargs: Any,
    ) -> None:
        """Attaches to the model and the optimizer as accelerate has prepared them.

        Raises:
          EgeriaError: what egeria.attach() refuses, and DeepSpeed.
        """
        self._end(finished=False)  # a training before may have ended by an exception
        trainer = _calling_trainer()
        if trainer is not None:
            if getattr(trainer, "is_deepspeed_enabled", False):
                raise EgeriaError(
                    "FOREIGN_WRAPPER",
                    "the Trainer runs DeepSpeed, which keeps gradients and weights in buffers of its own; leave "
                    "`deepspeed` out of TrainingArguments and use DDP or FSDP2",
                )
            model = trainer.model_wrapped
            _put_first(trainer, self)
        config = self._config_for(args, state)
        self.session = attach(
            model, _innermost(optimizer), modules=self._modules, scheduler=lr_scheduler, config=config
        )
        saved = (state.stateful_callbacks or {}).get(_STATE_KEY, {})
        # A training without Egeria hands the entry of the checkpoint that it was resumed from on to its own.
        fits = saved.get("global_step") == state.global_step
        self.session.load_state_dict(saved["session"] if fits else {"step": state.global_step})
        if trainer is not None:
            if config.cache_address() is not None or (self._variants is not None and config.enabled):
                self._identify_batches(kwargs.get("train_dataloader"))
            self._watch_steps(trainer)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Reports the loss of the step that the optimizer has just made, and keeps the state for a checkpoint."""
        if self.session is not None:
            self.session.step(self._loss)
            self._loss = None
            self._keep_state(state)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Adds Egeria's numbers to those of the training, for the loggers that are called after this."""
        if self.session is None or logs is None or "loss" not in logs or not state.is_world_process_zero:
            return
        scalars = self.session.scalars()
        logs.update(scalars)
        if state.log_history and state.log_history[-1].get("step") == state.global_step:
            state.log_history[-1].update(scalars)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Ends the session; layers that are frozen then train again, should the model be trained further."""
        self._keep_state(state)
        self._end(finished=True)

    def _config_for(self, args: TrainingArguments, state: TrainerState) -> Config:
        config = self._config if self._config is not None else Config.from_env()
        known: dict[str, Any] = {}
        if config.total_steps is None and state.max_steps > 0:
            known["total_steps"] = state.max_steps
        if config.training_job is None and args.run_name and args.run_name != args.output_dir:
            known["training_job"] = args.run_name
        return dataclasses.replace(config, **known)

    def _identify_batches(self, loader: Any) -> None:
        """Lets the ids of a batch's samples travel with it, from the loader to training_step(). In between are
        other hands: loaders made of this one when a training is resumed, batches taken ahead.

        Raises:
          EgeriaError: [NO_SAMPLE_IDS], [BAD_VARIANTS], [NO_SKIP_LOADING] there can be no variants, or nothing can be
            left out, where that is wanted.
        """
        try:
            self._marks = data.Marks(loader, self._variants, **self._skipping)
            self.no_sample_ids = None
        except EgeriaError as error:
            if self._variants is not None or self._skipping["skip_loading"]:
                self._end(finished=False)
                raise
            self.no_sample_ids = str(error)
            data.current().nobody_announces(str(error))

    def _watch_steps(self, trainer: Trainer) -> None:
        """Callbacks are not told the loss. Trainer.training_step() returns that of each micro-batch, already
        divided by their number. And it is given the batch, which Trainer.get_batch_samples() has taken from the
        loader."""
        inner = trainer.training_step
        marks = self._marks

        @functools.wraps(inner)
        def training_step(model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
            with contextlib.nullcontext() if marks is None else marks.announcing(inputs):
                loss = inner(model, inputs, *args, **kwargs)
            self._loss = loss if self._loss is None else self._loss + loss
            return loss

        trainer.training_step = training_step
        self._trainer = trainer
        if marks is None or marks.memory is None:
            return
        inner_batches = trainer.get_batch_samples

        @functools.wraps(inner_batches)
        def get_batch_samples(epoch_iterator: Any, *args: Any, **kwargs: Any) -> Any:
            return inner_batches(marks.completing(epoch_iterator), *args, **kwargs)

        trainer.get_batch_samples = get_batch_samples

    def _keep_state(self, state: TrainerState) -> None:
        # At every step, since whether a checkpoint follows is decided by callbacks that may come later.
        if self.session is not None and isinstance(state.stateful_callbacks, dict):
            entry = {"global_step": state.global_step, "session": self.session.state_dict()}
            state.stateful_callbacks[_STATE_KEY] = entry

    def _end(self, finished: bool) -> None:
        if self.session is not None:
            self.session.close(finished=finished)
        if self._trainer is not None:
            del self._trainer.training_step  # the class's own again
            vars(self._trainer).pop("get_batch_samples", None)
            self._trainer = None
        if self._marks is not None:
            self._marks.remove()
            self._marks = None
        self._loss = None


def _calling_trainer() -> Trainer | None:
    """The Trainer that is calling a callback now: callbacks are given the bare model, neither the wrapper around
    it nor the Trainer."""
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, Trainer):
            return caller
        frame = frame.f_back
    _logger.warning(
        "egeria: no Trainer was found behind this callback: losses are not known, and Egeria's "
        "numbers do not reach the loggers"
    )
    return None


def _put_first(trainer: Trainer, callback: TrainerCallback) -> None:
    """Loggers come before a user's callbacks; what on_log() adds shall reach them. Moving the entry that is being
    called is safe: those behind it stay where they are."""
    callbacks = trainer.callback_handler.callbacks
    callbacks.remove(callback)
    callbacks.insert(0, callback)


def _innermost(optimizer: Any) -> Any:
    """The optimizer that really steps, inside accelerate's."""
    while isinstance(getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = optimizer.optimizer
    return optimizer
