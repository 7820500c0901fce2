"""A shadow of a model takes the passes that training does not: copies of its modules, which share the parameters."""

from __future__ import annotations

import collections
import contextlib
import copy
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from egeria.model.inputs import GraphError, RootInputs
from egeria.model.isolation import (
    RandomStates,
    device_of,
    has_compiled,
    held_by,
    plain_evaluation,
    shadow_pass,
    uncompiled,
    without_fused_attention,
)
from egeria.model.module_copies import HOOK_TABLES, CannotCopy, copy_modules
from egeria.model.operators import tensors_among, written_by
from egeria.model.outputs import tensors_in
from egeria.model.purity import Beyond, check_code, is_of_user

# A model that holds more than this besides its parameters is not copied.
_MOST_BYTES = 1 << 29
# A shadow's results may differ from training's by this part of their norm.
_TOLERANCE = 0.02
_COLLECTIVES = ("c10d", "_c10d_functional", "c10d_functional", "_dtensor")
# These hooks of torch's own make a module's weights, and belong to it; by this one a model of transformers collects the
# hidden states that it returns.
_OWN_HOOKS = ("torch.nn.utils", "torch.ao")
_OWN_FUNCTIONS = ("transformers.utils.output_capturing",)
_GLOBAL_HOOKS = [
    value
    for name, value in vars(torch.nn.modules.module).items()
    if name.startswith("_global") and "hooks" in name and isinstance(value, dict)
]


class NoShadow(Exception):
    """Why a model has no shadow; the text is for people."""


class Shadow:
    """Copies of a model's modules that share the memory of its parameters and own all else: buffers, attributes,
    generators. They have no hooks but those that belong to them.

    Attributes:
      model: the copy of the model.
    """

    def __init__(self, model: nn.Module):
        """
        Raises:
          NoShadow: the model cannot be copied so, or its code may change something outside of it.
        """
        self._memo = _Memo()
        try:
            _prepare(model, self._memo)
            self.model: nn.Module = copy_modules(model, self._memo, _is_own)
            for wrapper in _compiled_in(model):
                self.of(wrapper).add_module("_orig_mod", copy_modules(wrapper._orig_mod, self._memo, _is_own))
            for module in self.model.modules():
                _drop_hooks(module)
                _own_class_attributes(module, self._memo)
        except NoShadow:
            raise
        except Exception as error:  # pylint: disable=broad-exception-caught  # whatever an object's copying raises
            raise NoShadow(f"its modules cannot be copied: {type(error).__name__}: {error}") from error
        aliases = {id(parameter) for parameter in self.model.parameters()}
        shared = {parameter.data_ptr() for parameter in model.parameters()}
        if any(parameter.data_ptr() not in shared for parameter in self.model.parameters()):
            raise NoShadow("a module copies its parameters when it is copied")
        self._own = [value for value in self._memo.copies() if isinstance(value, Tensor) and id(value) not in aliases]
        self._drawing = [
            value
            for value in self._memo.copies()
            if isinstance(value, (torch.Generator, random.Random)) or hasattr(type(value), "bit_generator")
        ]
        self._generators = [value for value in self._drawing if isinstance(value, torch.Generator)]
        try:
            self._read = check_code(self._modules_of(model), self._memo.copies())
        except Beyond as error:
            raise NoShadow(str(error)) from error

    def _modules_of(self, model: nn.Module) -> Iterator[tuple[str, nn.Module, nn.Module]]:
        for name, module in model.named_modules():
            yield name, self.of(module), module

    def of(self, module: nn.Module) -> nn.Module:
        """The copy of a module of the model."""
        return self._memo[id(module)]

    @contextlib.contextmanager
    def running(self, inputs: Sequence[Tensor] = (), guarded: bool = True) -> Iterator[nn.Module]:
        """A context for passes of the copy. Random states and the default dtype are afterwards what they were; hooks
        for all modules, compiled code and modes of the user's do not take part.

        Args:
          inputs: what a pass may write to besides.
          guarded: False for passes without numbers, in which nothing is written to.

        Raises:
          NoShadow: an operator talks to other ranks, writes to a tensor or draws from a generator that is not the
            shadow's. It is not carried out. Or code uses an attribute that cannot be copied.
        """
        default_dtype = torch.get_default_dtype()
        read = [(container, _contents(container)) for container in self._read]
        guard = _Guard([*self._own, *inputs], self._generators)
        with (
            RandomStates(device_of(self.model)),
            uncompiled(),
            _disable_current_modes(),
            _without_global_hooks(),
            shadow_pass(),
        ):
            try:
                with guard if guarded else contextlib.nullcontext():
                    yield self.model
            except CannotCopy as error:
                raise NoShadow(str(error)) from error
            finally:
                torch.set_default_dtype(default_dtype)
        if guard.reason is not None:  # the model has caught it
            raise NoShadow(guard.reason)
        if any(_contents(container) != before for container, before in read):
            raise NoShadow("its forward pass changes something outside of it")

    @contextlib.contextmanager
    def evaluated(self, inputs: Sequence[Tensor] = (), guarded: bool = True) -> Iterator[nn.Module]:
        """As running(), in evaluation mode, without gradients and autocast. The fused attention kernels of
        nn.TransformerEncoder, which no graph shows, are off meanwhile."""
        for module in self.model.modules():
            vars(module)["training"] = False
        with self.running(inputs, guarded) as model, plain_evaluation(device_of(model)), without_fused_attention():
            yield model

    def random_states(self) -> str:
        """The states of all generators that a pass may draw from, its own among them, to compare."""
        own = [
            value.get_state().tolist()
            if isinstance(value, torch.Generator)
            else value.getstate()
            if isinstance(value, random.Random)
            else value.bit_generator.state  # numpy's
            for value in self._drawing
        ]
        return RandomStates(device_of(self.model)).text() + repr(own)


class _Memo(dict):
    """Counts what is copied."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __setitem__(self, key: int, value: Any) -> None:
        super().__setitem__(key, value)
        is_array = isinstance(value, Tensor) or type(value).__module__ == "numpy"
        if is_array and not isinstance(value, nn.Parameter):
            self.bytes += getattr(value, "nbytes", 0)
        if self.bytes > _MOST_BYTES:
            raise NoShadow(f"it holds more than {_MOST_BYTES >> 20} MiB besides its parameters")

    def copies(self) -> list[Any]:
        """All objects that are the copy's own: not those of which copying gives the same object, nor the list in which
        deepcopy() keeps the originals."""
        return [value for key, value in self.items() if key not in (id(self), id(value))]


def _prepare(model: nn.Module, memo: _Memo) -> None:
    """Says what is not to be copied: parameters are shared, results of earlier passes cut off."""
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if type(parameter.data) is not Tensor or parameter.is_meta:
            raise NoShadow(f"parameter '{name}' is a {type(parameter.data).__name__} on '{parameter.device}'")
        if id(parameter) not in memo:
            alias = Tensor._make_subclass(type(parameter), parameter.detach(), parameter.requires_grad)
            alias.__dict__.update(vars(parameter))
            memo[id(parameter)] = alias
    for wrapper in _compiled_in(model):
        memo[id(wrapper)] = _Uncompiled()
    for tensor in held_by(model)[1]:
        if tensor.grad_fn is not None:
            memo[id(tensor)] = tensor.detach().clone()


def _drop_hooks(module: nn.Module) -> None:
    """Drops the hooks of a copy whose class is copied its own way, and which has them still."""
    for name in HOOK_TABLES:
        hooks = vars(module)[name]
        for key in [key for key, hook in hooks.items() if not _is_own(hook)]:
            del hooks[key]


def _without_hooks(model: nn.Module) -> str:
    """Says where a copy goes without a hook, which may be why it differs."""
    for name, module in model.named_modules():
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values()):
            origin = getattr(hook, "__module__", None) or type(hook).__module__
            if not _is_own(hook) and not origin.startswith("egeria."):
                return f"; it goes without hooks, and a hook of '{origin}' is on '{name}'"
    return ""


class _Uncompiled(nn.Module):
    """Stands for torch.compile around a submodule."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._orig_mod(*args, **kwargs)


def _compiled_in(model: nn.Module) -> list[nn.Module]:
    dynamo = sys.modules.get("torch._dynamo")
    return [] if dynamo is None else [found for found in model.modules() if isinstance(found, dynamo.OptimizedModule)]


def _is_own(hook: Any) -> bool:
    return type(hook).__module__.startswith(_OWN_HOOKS) or getattr(hook, "__module__", None) in _OWN_FUNCTIONS


def _own_class_attributes(module: nn.Module, memo: _Memo) -> None:
    """Gives a copy of its own what it has in common with all modules of its class."""
    kinds = (dict, list, set, collections.deque, Tensor, torch.Generator, random.Random)
    for kind in type(module).__mro__:
        if is_of_user(kind):
            for name, value in vars(kind).items():
                if isinstance(value, kinds) and not name.startswith("__") and name not in vars(module):
                    vars(module)[name] = copy.deepcopy(value, memo)


class _Guard(TorchDispatchMode):
    """Lets operators write only to tensors that a pass has made, or that are the shadow's.

    Attributes:
      reason: why an operator was not carried out; None: all were.
    """

    def __init__(self, own: list[Tensor], generators: list[torch.Generator]):
        super().__init__()
        self.reason: str | None = None
        self._generators = generators
        self._own = {_address(tensor) for tensor in own}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace in _COLLECTIVES:
            self._refuse(f"its forward pass talks to other ranks ({func})")
        used = {_address(tensor) for tensor in tensors_among((args, kwargs))}
        if not {_address(tensor) for tensor in written_by(func, args, kwargs)} - {None} <= self._own:
            self._refuse(f"its forward pass writes to a parameter, or to a tensor that is no part of it ({func})")
        generator = kwargs.get("generator")
        if generator is not None and not self._is_own(generator):
            self._refuse("its forward pass draws from a generator that is no part of it")
        result = func(*args, **kwargs)
        self._own.update({_address(tensor) for tensor in tensors_among(result)} - used)
        return result

    def _is_own(self, generator: torch.Generator) -> bool:
        """By its state, since an operator gets another object for it. A default generator is put back."""
        state = generator.get_state()
        own = [*self._generators, torch.default_generator]
        return generator.device.type != "cpu" or any(torch.equal(state, other.get_state()) for other in own)

    def _refuse(self, reason: str) -> None:
        self.reason = self.reason or reason
        raise NoShadow(reason)


def _address(tensor: Tensor) -> int | None:
    """Where its memory begins; None where it has none."""
    if tensor.layout is not torch.strided or tensor.is_meta or type(tensor).__torch_dispatch__ is not _PLAIN:
        return None
    return tensor.untyped_storage().data_ptr() or None


_PLAIN = Tensor.__torch_dispatch__


@contextlib.contextmanager
def _without_global_hooks() -> Iterator[None]:
    saved = [dict(hooks) for hooks in _GLOBAL_HOOKS]
    try:
        for hooks in _GLOBAL_HOOKS:
            hooks.clear()
        yield
    finally:
        for hooks, before in zip(_GLOBAL_HOOKS, saved):
            hooks.update(before)


def _contents(container: Any) -> list[Any]:
    entries = container.items() if isinstance(container, dict) else ((0, value) for value in container)
    return [(id(key), id(value)) for key, value in entries]


class FirstPass:
    """The first pass of a model's shadow: beside a pass of training, with the same inputs and random numbers. It has
    to give what training gets; before that there is no second one. Owned by the training thread.

    Attributes:
      reason: why the model has no shadow; None where it has one, or there has been no pass.
      done: there has been one.
    """

    def __init__(self, model: nn.Module, outermost: nn.Module):
        """`outermost` is the model with the wrappers that it has now."""
        self.reason: str | None = None
        self.done = False
        self._model = model
        self._outermost = outermost
        self._expected: list[Tensor] | None = None  # the results that training's pass under way is to give
        self._random = False

    @property
    def why_not(self) -> str | None:
        """Why no other pass may be made; None where it may, also while the training's first pass is under way."""
        return None if self._expected is not None else self.reason

    def before_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before a pass of training with these arguments: takes the shadow's."""
        if self.done:
            return
        self.done, self.reason = True, "its first pass has not ended"
        try:
            self._expected = self._take(args, kwargs)
        except NoShadow as error:
            self.reason = str(error)
        except GraphError as error:
            self.reason = str(error)
        except Exception as error:  # pylint: disable=broad-exception-caught  # whatever a model's code raises
            self.reason = f"{type(error).__name__}: {str(error)[:200]}{_without_hooks(self._model)}"

    def take_for_first(self, output: Any, random: bool) -> None:
        """Somebody else's pass of a shadow, beside training's pass under way, has returned this: if there has been none
        before, it is the first one. `random`: it has drawn random numbers."""
        if not self.done:
            self.done, self._random = True, random
            self._expected = [tensor.detach() for tensor in tensors_in(output)]

    def after_forward(self, output: Any) -> None:
        """Training's pass has returned this."""
        expected, self._expected = self._expected, None
        if expected is None:
            return
        found = [tensor.detach() for tensor in tensors_in(output)]
        if len(found) == len(expected) and all(map(_alike, found, expected)):
            self.reason = None
        elif self._random and has_compiled(self._outermost):
            self.reason = None  # compiled code draws other random numbers, so that nothing can be said
        else:
            self.reason = f"a copy of it computes something else than it does itself{_without_hooks(self._model)}"

    def _take(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        inputs = RootInputs(args, kwargs, sys.maxsize)
        cached = torch.is_autocast_cache_enabled()
        shadow = Shadow(self._model)
        with shadow.running(inputs.tensors()) as model, torch.no_grad():
            random_before = shadow.random_states()
            try:
                torch.set_autocast_cache_enabled(False)
                output = inputs.call(model)
            finally:
                torch.set_autocast_cache_enabled(cached)
            self._random = shadow.random_states() != random_before
        return [tensor.detach() for tensor in tensors_in(output)]


def _alike(one: Tensor, other: Tensor) -> bool:
    """But for roundings, such as those by which compiled code differs."""
    if one.shape != other.shape:
        return False
    if not (one.is_floating_point() and other.is_floating_point()):
        return bool((one == other).all())
    difference = torch.linalg.vector_norm((one.float() - other.float()).nan_to_num())
    return bool(difference <= _TOLERANCE * torch.linalg.vector_norm(one.float().nan_to_num()) + 1e-6)
