"""A session follows a training by these hooks: before and after the model's forward pass, before and after the
optimizer's step.

None keeps its session alive, and copies of a hooked model or optimizer (an average of the weights, a pickle,
what a forked or spawned process inherits) carry hooks that do nothing.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from egeria.model.pass_hooks import Hooked, MethodHook, PassHook, has_own_forward, uncompiled
from egeria.model.plain_copies import copies_may_differ, keep_copies_plain
from egeria.model.wrappers import wrappers_of

# New wrappers are looked for after so many steps without a pass that was seen. It takes a tenth of a second.
_LOOKS = (1, 2, 4, 8, 64, 512, 4096)


class TrainingPassHook(PassHook):
    """Forward hook, before or after, of the outermost module that is known: it calls the method for passes of training.

    In a network inside a training framework's module it also leaves out the framework's detours through its wrapper.
    Where both are one, the network's forward() is replaced for them: a call of something else, with other arguments.
    """

    def __init__(self, method: Callable[..., None], own_forward_only: bool):
        super().__init__(method)
        self._own_forward_only = own_forward_only

    def __call__(self, module: nn.Module, *arguments: Any) -> None:
        if torch.compiler.is_compiling() or not module.training or not torch.is_grad_enabled():
            return
        if not self._own_forward_only or has_own_forward(module):
            super().__call__(module, *arguments)


class PassFollower:
    """Follows the training passes of a model, by hooks on it and on the wrappers around it. Owned by the training
    thread."""

    def __init__(
        self,
        model: nn.Module,
        own_forward_only: bool,
        adopt: Callable[[nn.Module], None],
        begin: Callable[[], None],
        before: Callable[[tuple[Any, ...], dict[str, Any]], None],
        after: Callable[[tuple[Any, ...], Any], None],
        other: Callable[[], None],
    ):
        """
        Args:
          model: without its wrappers.
          own_forward_only: as for a TrainingPassHook.
          adopt: called with a wrapper around the model that was made after attach().
          begin: called once for each pass, before a wrapper that is known has begun with it.
          before: called before the pass, with the model's arguments.
          after: called behind it, with its arguments and its output.
          other: called before a pass outside of training.
        """
        self._model = model
        self._own_forward_only = own_forward_only
        self._adopt = adopt
        self._begin = begin
        self._before = before
        self._after = after
        self._other = other
        self._begun = False  # a pass that has not come to the module that is followed
        self._steps_unseen = 0  # in a row, without a forward pass that was seen
        self._followed: set[int] = set()  # ids of modules
        self._begins: set[int] = set()
        self._handles: dict[int, list[Hooked]] = {}  # by id of module
        self._calls: list[nn.Module] = []  # the modules whose passes are followed

    def follow(self, module: nn.Module) -> bool:
        """Follows the passes of `module`: those that matter do not go past it. Returns False where it does already."""
        if id(module) in self._followed:
            return False
        self._followed.add(id(module))
        self._calls.append(module)
        self._keep(module, module.register_forward_pre_hook(self._hook(self._enter), with_kwargs=True))
        self._keep(module, module.register_forward_hook(self._hook(self._after)))
        self._keep(module, module.register_forward_pre_hook(OtherPassHook(self._enter_other)))
        self.follow_begins(module)
        self.follow_compiled()
        if "compile" not in module.__dict__:
            keep_copies_plain(module)
            module.__dict__["compile"] = _FollowedCompile(module, self.follow_compiled)
        return True

    def follow_wrappers(self) -> None:
        """A wrapper that was made after attach() may be compiled with everything inside it: its passes count, too."""
        for found in () if self._own_forward_only else wrappers_of(self._model):
            if self.follow(found):
                self._adopt(found)

    def find_new_wrappers(self, parts_seen: bool) -> None:
        """A step has ended. In mid-training the model may be wrapped anew. Then its passes are not seen until that
        wrapper is followed; looking for it takes a while. `parts_seen`: the model's parts are called past it, so that
        there is none."""
        self._steps_unseen += 1
        if not parts_seen and self._steps_unseen in _LOOKS:
            self.follow_wrappers()

    @property
    def is_passed_by(self) -> bool:
        """Whether no pass was seen in the step that has ended; after find_new_wrappers()."""
        return self._steps_unseen > 0

    def follow_compiled(self) -> None:
        """Follows calls of modules that model.compile() has compiled meanwhile, around the compiled code: with hooks on
        the module other code would come of it, which rounds differently."""
        for module in self._calls:
            call = module._compiled_call_impl
            if call is not None and not isinstance(call, _FollowedCall):
                self._remove_hooks(module)
                hooks = [self._hook(entry) for entry in (self._enter_wrapper, self._enter, self._after)]
                module._compiled_call_impl = _FollowedCall(module, OtherPassHook(self._enter_other), *hooks)

    def follow_begins(self, wrapper: nn.Module | None) -> None:
        """Calls begin() before `wrapper`, if there is one, begins with a pass."""
        if wrapper is not None and id(wrapper) not in self._begins:
            self._begins.add(id(wrapper))
            enter, leave = self._hook(self._enter_wrapper), self._hook(self._leave_wrapper)
            self._keep(wrapper, wrapper.register_forward_pre_hook(enter, prepend=True))
            self._keep(wrapper, wrapper.register_forward_hook(leave))

    def close(self) -> None:
        for handles in self._handles.values():
            for handle in handles:
                handle.remove()
        for module in self._calls:
            if isinstance(call := module._compiled_call_impl, _FollowedCall):
                module._compiled_call_impl = call.compiled
            if isinstance(module.__dict__.get("compile"), _FollowedCompile):
                del module.__dict__["compile"]
                copies_may_differ(module)

    def _keep(self, module: nn.Module, handle: RemovableHandle) -> None:
        self._handles.setdefault(id(module), []).append(Hooked(module, handle))

    def _remove_hooks(self, module: nn.Module) -> None:
        for handle in self._handles.pop(id(module), []):
            handle.remove()

    def _hook(self, call: Callable[..., None]) -> TrainingPassHook:
        return TrainingPassHook(call, self._own_forward_only)

    def _enter_wrapper(self, _: Any) -> None:
        if not self._begun:
            self._begun = True
            self._begin()

    def _leave_wrapper(self, *_: Any) -> None:
        self._begun = False  # though the pass may not have come to the module that is followed

    def _enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._begun = False
        self._steps_unseen = -1
        self._before(args, kwargs)

    def _enter_other(self) -> None:
        self._other()


class OtherPassHook(PassHook):
    """Forward pre-hook of the outermost module that is known: it calls the method for passes outside of training."""

    def __call__(self, module: nn.Module, *arguments: Any) -> None:
        if not (module.training and torch.is_grad_enabled()):
            super().__call__(module)


class _FollowedCall:
    """Stands for what model.compile() has made of a call, and does what hooks do, which compiled code skips."""

    def __init__(self, module: nn.Module, other: Callable[..., None], *hooks: Callable[..., None]):
        self.compiled = module._compiled_call_impl
        self._module = module
        self._other = other
        self._begin, self._before, self._after = hooks

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._other(self._module, args)
        self._begin(self._module, args)
        self._before(self._module, args, kwargs)
        output = self.compiled(*args, **kwargs)
        self._after(self._module, args, output)
        return output


class _FollowedCompile(MethodHook):
    """Stands for a module's compile(), and calls the method behind it."""

    def __init__(self, module: nn.Module, method: Callable[[], None]):
        super().__init__(method)
        self._module = weakref.ref(module)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        module = self._module()
        type(module).compile(module, *args, **kwargs)
        if (method := self.method()) is not None:
            method()


class StepHook(MethodHook):
    """Hook of every optimizer's step(), before or after it, whose method gets the optimizer."""

    @uncompiled
    def __call__(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if (method := self.method()) is not None:
            method(optimizer)


class BeforeStepHook(MethodHook):
    """Pre-hook of every optimizer's step(), whose method says what to call. Where the passes are in the step's closure,
    as in Lightning, it is called behind them."""

    @uncompiled
    def __call__(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        method = self.method()
        before = method(optimizer) if method is not None else None
        if before is None:
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # args[0] is the optimizer
        if not callable(closure):  # there is none, or it is an argument of another kind
            before()
            return None

        @functools.wraps(closure)
        def followed(*inner: Any, **named: Any) -> Any:
            result = closure(*inner, **named)
            before()
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": followed}
        return (args[0], followed, *args[2:]), kwargs
