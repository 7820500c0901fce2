"""A Freezer freezes a prefix of a model's layer modules, and unfreezes it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from egeria.errors import EgeriaError
from egeria.freeze import gradient_scalers, reentrant_checkpoints, wishes
from egeria.freeze.mode_pins import ModePins
from egeria.model.modules import LayerModule

# Names of a parameter's momentum in the state of an optimizer.
_MOMENTUM = ("momentum_buffer", "momentum", "velocity")


class Freezer:
    """Freezes modules 0..k-1 of a model and keeps all others active.

    Freezing a layer module: gradients off and None (optimizers then skip its parameters, which stay in their groups: no
    weight decay, no momentum), modes pinned to eval. A parameter that a later layer module uses too belongs to that
    one, and trains on with its whole gradient. Unfreezing is the exact inverse: parameters that did not ask for a
    gradient still do not, and modes become what was asked for meanwhile. Momentum of parameters that train again starts
    at zero, since stale momentum makes the first step about ten times too long; Adam's moments are kept, since without
    them it would be. The gradient reducer has to be rebuilt afterwards (Replicas.rebuild).

    Parameters are looked up by name at each switch, so that it does not matter if they were replaced meanwhile.

    Owned by the training thread. To be used between steps only: after the optimizer's step, before the next
    forward pass. Nothing of a model that it froze refers to it.
    """

    def __init__(self, modules: Sequence[LayerModule], optimizers: Sequence[Optimizer]):
        self._modules = list(modules)
        self._optimizers = optimizers
        self._prefix = 0
        self._wishes: dict[str, wishes.Wish] = {}  # about the frozen parameters, by name
        self._frozen: dict[str, nn.Parameter] = {}  # by name
        self._modes = ModePins()
        self._pinned: list[nn.Module] = []
        self._model = _FrozenModel()

    @property
    def prefix(self) -> int:
        """Number of frozen layer modules, from the front."""
        return self._prefix

    @property
    def frozen_share(self) -> float:
        """Share of the model's parameters that train which is frozen, 0..1."""
        frozen = self.unfrozen_by(self._modules[: self._prefix])
        active = [value for value in _named(self._modules[self._prefix :]).values() if value.requires_grad]
        return _count(frozen) / max(1, _count(frozen) + _count(active))

    def apply(self, prefix: int) -> bool:
        """Makes layer modules 0..prefix-1 frozen and all others active.

        Returns:
          Whether that changed anything.

        Raises:
          EgeriaError: [BAD_PREFIX] negative, or would freeze the last layer module.
        """
        if not 0 <= prefix < len(self._modules):
            raise EgeriaError(
                "BAD_PREFIX",
                f"{prefix} layer modules cannot be frozen: the model has {len(self._modules)}, and the last never "
                f"freezes; give 0 to {len(self._modules) - 1}",
            )
        return self._set(prefix, self._reset_momentum)

    def take_back(self, prefix: int) -> None:
        """Makes layer modules 0..prefix-1 frozen again and all others active, after an apply() of the same moment that
        has not come to its end or has to be undone: no momentum is stale."""
        self._set(prefix, lambda parameter: None)

    def _set(self, prefix: int, when_unfrozen: Callable[[nn.Parameter], None]) -> bool:
        changed = prefix != self._prefix
        frozen, active = self._modules[:prefix], self._modules[prefix:]
        parameters, others = _named(frozen), _named(active)
        if prefix > 0:  # first, since garbage may be collected at any moment, and in it the last other frozen model
            self._model.begin([*parameters.values(), *others.values()])
        self._unfreeze({name: value for name, value in others.items() if name in self._wishes}, when_unfrozen)
        self._freeze(parameters)
        self._frozen = parameters
        self._modes.set(_units(frozen), _units(active), self._modules[-1].units, self._pinned)
        if prefix == 0:
            self._model.end()
        self._prefix = prefix
        return changed

    def pin(self, modules: Sequence[nn.Module]) -> None:
        """Holds these modules in eval mode, too, which the script has frozen; and no others that it has."""
        self._pinned = list(modules)
        frozen, active = self._modules[: self._prefix], self._modules[self._prefix :]
        self._modes.set(_units(frozen), _units(active), self._modules[-1].units, self._pinned)

    @property
    def holds(self) -> bool:
        """Whether anything is frozen, or held in eval mode."""
        return self._prefix > 0 or bool(self._pinned)

    def unfrozen_by(self, modules: Iterable[LayerModule]) -> list[nn.Parameter]:
        """Parameters of `modules` that are frozen, and would train again if these were not."""
        named = _named(modules).items()
        wishes_of = ((self._wishes.get(name), parameter) for name, parameter in named)
        return [parameter for wish, parameter in wishes_of if wish is not None and wish.asked and not wish.hidden]

    def doubtful(self) -> list[str]:
        """Names of frozen parameters that the script may have wanted to freeze for good; see wishes.Wish."""
        return [name for name, wish in self._wishes.items() if wish.doubtful]

    def begin_other_pass(self) -> None:
        """Before a forward pass outside of training: sets the modes of frozen layers to what the script asks for."""
        self._modes.begin_pass(of_training=False)

    def hold(self) -> None:
        """Before a training forward pass: sets the modes of frozen layers again, in case `training` was assigned to
        where their own hooks do not run, such as before a compiled pass; and switches off gradients that somebody has
        switched on. No reducer would average those: each rank would train by its own."""
        self._modes.begin_pass(of_training=True)
        for name, parameter in self._frozen.items():
            if wishes.has_gradient(parameter):
                self._wishes[name].asked = True
                wishes.set_gradient(parameter, False)
                parameter.grad = None

    def end_pass(self) -> None:
        """Behind a training forward pass."""
        self._modes.end_pass()

    def _freeze(self, parameters: dict[str, nn.Parameter]) -> None:
        for name, parameter in parameters.items():
            wish = wishes.follow(parameter)
            wish.asked |= name in self._wishes and self._wishes[name].asked and self._frozen.get(name) is not parameter
            self._wishes[name] = wish
            wishes.set_gradient(parameter, False)
            parameter.grad = None

    def _unfreeze(self, parameters: dict[str, nn.Parameter], when_unfrozen: Callable[[nn.Parameter], None]) -> None:
        for name, parameter in parameters.items():
            wish = self._wishes.pop(name)
            if wish.hidden:  # nothing takes its gradient
                continue
            wishes.forget(parameter)
            if wish.asked:
                wishes.set_gradient(parameter, True)
                when_unfrozen(parameter)

    def _reset_momentum(self, parameter: nn.Parameter) -> None:
        # In place: fused optimizers take no mixture of buffers and None. From zeros, a step is the gradient's.
        for optimizer in _with_inner(self._optimizers):
            state = optimizer.state.get(parameter, {})
            for momentum in (state.get(name) for name in _MOMENTUM):
                if isinstance(momentum, Tensor):
                    momentum.zero_()


def _with_inner(optimizers: Iterable[Optimizer]) -> list[Optimizer]:
    """With the optimizers that they use, as look-ahead and sharpness-aware minimization do."""
    found: dict[int, Optimizer] = {}
    ahead = list(optimizers)
    while ahead:
        if id(optimizer := ahead.pop()) not in found:
            found[id(optimizer)] = optimizer
            ahead += [value for value in vars(optimizer).values() if isinstance(value, Optimizer)]
    return list(found.values())


def _named(modules: Iterable[LayerModule]) -> dict[str, nn.Parameter]:
    return {name: parameter for module in modules for name, parameter in module.parameters()}


def _units(modules: Iterable[LayerModule]) -> list[nn.Module]:
    return [unit for module in modules for unit in module.units]


def _count(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)


# While some model of the process has frozen layers, settings of torch as a whole are others.


class _FrozenModel:
    """A model of this process that may have frozen layers. Owned by the training thread.

    While one has, reentrant checkpoints carry gradients past frozen layers (egeria.freeze.reentrant_checkpoints),
    scalers pass over optimizers whose parameters are all frozen (egeria.freeze.gradient_scalers), and torch's fast path
    for attention is off: where the first layer of an nn.TransformerEncoder is frozen, it would hand nested tensors to
    the active ones, which do not take them.
    """

    def __init__(self) -> None:
        self.parameters: frozenset[int] = frozenset()  # id of each, frozen or not
        weakref.finalize(self, _restore).atexit = False  # it may go while layers are frozen

    def begin(self, parameters: Iterable[nn.Parameter]) -> None:
        """To be called before some of the model's parameters are frozen, with all of them; again at each switch."""
        self.parameters = frozenset(id(parameter) for parameter in parameters)
        _frozen.add(self)
        reentrant_checkpoints.carry_gradients(_is_ours)
        gradient_scalers.pass_over_frozen(_is_ours)
        _found.setdefault("fastpath", torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)

    def end(self) -> None:
        """To be called when none is frozen any more."""
        _frozen.discard(self)
        _restore()


_frozen: weakref.WeakSet[_FrozenModel] = weakref.WeakSet()
_found: dict[str, bool] = {}  # settings as they were before; empty where nothing was changed


def _restore() -> None:
    if list(_frozen) or (fastpath := _found.pop("fastpath", None)) is None:
        return
    reentrant_checkpoints.leave_alone()
    gradient_scalers.leave_alone()
    wishes.leave()
    torch.backends.mha.set_fastpath_enabled(fastpath)


def _is_ours(parameter: nn.Parameter) -> bool:
    return any(id(parameter) in model.parameters for model in _frozen)
