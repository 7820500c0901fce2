"""A FrozenPart is a frozen submodule whose calls may be computed in inference form."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from egeria.cache.module_fingerprint import ModuleFingerprint
from egeria.cache.refused import Refused
from egeria.frozen_forward import inference_form
from egeria.frozen_forward.inference_form import InferenceForm
from egeria.frozen_forward.passes import Passes
from egeria.frozen_forward.tracing import check_modes
from egeria.model.inputs import SIMPLE
from egeria.model.isolation import in_own_pass
from egeria.model.module_modes import ModuleModes
from egeria.model.plain_copies import Ours

# Calls of so many shapes have a form; a form is made for one that comes for the second time.
_MOST_SHAPES = 8
_CALLS_BEFORE = 2
# For these reasons a part as a whole has no form, and parts of it may have one.
_DIVISIBLE = (
    "NO_GRAPH",
    "NO_SHADOW",
    "WRITES_INPUT",
    "RANDOM",
    "KEEPS_STATE",
    "TRAINING_MODE",
    "RAISES",
    "OUTPUT_DIFFERS",
)


class FrozenPart:
    """The calls of one module that is frozen, or of an nn.Sequential whose first modules are.

    A form stands for the calls of one shape in the modes of one moment. It is used as long as weights, buffers,
    attributes and what the code names are what they were. Owned by the training thread.

    Attributes:
      name: of the module in the model.
      module: whose forward is replaced.
      frozen: computes what a form computes: the module itself, or its first modules.
      forms: by shape of call.
      refusals: why calls of other shapes have none.
      was_called: as a whole; else its modules are called past it.
    """

    def __init__(
        self,
        passes: Passes,
        divide: Callable[[FrozenPart], None],
        name: str,
        module: nn.Module,
        frozen_children: int | None = None,
    ):
        """
        Args:
          divide: called where the part as a whole has no form, and its modules may have one each.
          frozen_children: how many of a Sequential's modules are frozen; None: the module is.
        """
        self.name = name
        self.module = module
        self.forms: dict[Any, InferenceForm] = {}
        self.refusals: dict[Any, Refused] = {}
        self.was_called = False
        self._passes = passes
        self._divide = divide
        self._children = tuple(module.children()) if frozen_children is not None else None
        self.frozen = module if frozen_children is None else nn.Sequential(*list(module.children())[:frozen_children])
        self._modules = [inner for inner in self.frozen.modules() if inner is not self.frozen]
        self._modes = ModuleModes(self.frozen.modules())
        self._hooks = -1  # the number of hooks inside that were looked at
        self._hooked: str | None = None  # the name of a module that has one which is not ours
        self._parameters: list[nn.Parameter] = []
        self._fingerprint: ModuleFingerprint | None = None
        self._calls: dict[Any, int] = {}  # by shape, as long as it has no form
        self._changes = 0
        self._wait = 0  # calls until it is tried again, after a change

    def __call__(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Stands for the module's forward."""
        self.was_called = True
        passes = self._passes
        if passes.live is not None and not in_own_pass():
            return self.run_joined(original, self._children, args, kwargs)
        if not passes.may_act() or (arguments := _flat(args, kwargs)) is None or not self._is_plain():
            return original(*args, **kwargs)
        key = self._key(*arguments)
        if key in self.refusals:
            return original(*args, **kwargs)
        form = self.forms.get(key)
        if form is None or not self._is_unchanged():
            begin = time.perf_counter()
            value = passes.exactly(self._compute, original, args, kwargs)
            passes.note_exact(time.perf_counter() - begin)
            self._make_form(key, *arguments)
            return self._go_on(value)
        tensors = [leaf for leaf in arguments[0] if isinstance(leaf, Tensor)]
        if passes.measures:
            value = passes.exactly(self._compute, original, args, kwargs)
            passes.compare(form, tensors, value)
        else:
            passes.calls += 1
            value = form.run(tensors)
        return self._go_on(value)

    def run_joined(
        self,
        original: Callable[..., Any],
        children: Sequence[nn.Module] | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Stands for the module's forward, or that of its copy in a shadow, in a pass that the cache takes part in.

        Args:
          children: of the module, or the copy, where it is a Sequential whose first modules are frozen.
        """
        form = self._form_in(args, kwargs) if self._passes.is_plain() and self._is_plain() else None
        if form is None or not self._is_unchanged():
            return original(*args, **kwargs)
        self._passes.note_used(self.name, form)
        value = form.run([leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)])
        if children is None:
            return value
        if self.frozen[-1] in (self._passes.live or ()):  # the cache sees what comes out of it
            value = children[len(self.frozen) - 1].forward.function(lambda formed: formed, value)
        for child in children[len(self.frozen) :]:
            value = child(value)
        return value

    def _form_in(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> InferenceForm | None:
        """The form for such a call, where nothing inside is to be seen but what comes out; that for another number of
        samples does as well."""
        inside = set(self._modules) & set(self._passes.live or ())
        if inside and (self._children is None or inside != {self.frozen[-1]}):
            return None
        if (arguments := _flat(args, kwargs)) is None or (key := self._key(*arguments)) in self.refusals:
            return None
        alike = (form for other, form in self.forms.items() if _but_samples(other) == _but_samples(key))
        return self.forms.get(key) or next(alike, None)

    @property
    def is_sequence(self) -> bool:
        """Whether the part is the first modules of a Sequential."""
        return self._children is not None

    @property
    def is_divisible(self) -> bool:
        """Whether modules inside may have a form where the whole has none."""
        return self._hooked is not None or any(error.name in _DIVISIBLE for error in self.refusals.values())

    @property
    def reasons(self) -> list[str]:
        hooked = [] if self._hooked is None else [f"[HOOKED] a hook on '{self._hooked}' may use what that computes"]
        passed_over = [form.passed_over for form in self.forms.values() if form.passed_over is not None]
        return hooked + [str(error) for error in (*self.refusals.values(), *passed_over)]

    def _compute(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Computes the frozen part as it is."""
        if self._children is None:
            return original(*args, **kwargs)
        (value,) = args
        for child in self.frozen:
            value = child(value)
        return value

    def _go_on(self, value: Any) -> Any:
        """Computes the modules of a Sequential behind the frozen ones."""
        for child in () if self._children is None else self._children[len(self.frozen) :]:
            value = child(value)
        return value

    def _is_plain(self) -> bool:
        """Whether a form may be used now: nothing inside trains, nobody looks into it, and no module has gone."""
        if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in self._parameters):
            return False
        if self._children is not None and self._children != tuple(self.module._modules.values()):
            return False
        hooks = sum(len(inner._forward_hooks) + len(inner._forward_pre_hooks) for inner in self._modules)
        if hooks != self._hooks:
            self._hooks, self._hooked = hooks, self._find_hook()
            if self._hooked is not None:
                self._divide(self)
        return self._hooked is None

    def _find_hook(self) -> str | None:
        for name, inner in self.frozen.named_modules(prefix=self.name):
            hooks = () if inner is self.frozen else (*inner._forward_hooks.values(), *inner._forward_pre_hooks.values())
            if not all(isinstance(hook, Ours) for hook in hooks):
                return name
        return None

    def _key(self, leaves: Sequence[Any], structure: Any) -> Any:
        return (structure, self._modes.now(), *map(_look_of, leaves))

    def _is_unchanged(self) -> bool:
        """Whether the part is what its forms were made of. If not, they are dropped."""
        try:
            if self._fingerprint is not None:
                self._fingerprint.check_unchanged(0)
            return True
        except Refused:
            self.forms.clear()
            self._calls.clear()
            self._fingerprint = None
            self._changes += 1
            self._wait = 4**self._changes
            return False

    def _make_form(self, key: Any, leaves: list[Any], structure: Any) -> None:
        """The part was computed as it is in such a call: makes a form for the next ones where there is time for it."""
        self._wait -= 1
        self._calls[key] = self._calls.get(key, 0) + 1
        is_due = self._calls[key] >= _CALLS_BEFORE and self._wait < 0
        if not is_due or len(self.forms) + len(self.refusals) >= _MOST_SHAPES or not self._passes.may_build():
            return
        with self._passes.building():
            try:
                self._build(key, leaves, structure)
            except Refused as error:
                self.refusals[key] = error
            except Exception as error:  # pylint: disable=broad-exception-caught  # never in the way
                self.refusals[key] = Refused("RAISES", f"{type(error).__name__}: {str(error)[:200]}")
        if key in self.refusals and self.is_divisible:
            self._divide(self)

    def _build(self, key: Any, leaves: list[Any], structure: Any) -> None:
        if not self._is_unchanged():
            return
        check_modes(self.name, self.frozen)
        self._parameters = list(self.frozen.parameters())
        if any(parameter.requires_grad for parameter in self._parameters):
            raise Refused("TIED_PARAMETER", f"a parameter of '{self.name}' trains on: other layers use it, too")
        fingerprint = self._fingerprint or ModuleFingerprint(self.frozen, (), 0)
        form = next((form for other, form in self.forms.items() if _but_samples(other) == _but_samples(key)), None)
        if form is None or not form.fits(self.frozen, leaves, structure):
            form = inference_form.make(self.frozen, leaves, structure, self._passes.wanted)
        self._fingerprint = fingerprint
        self.forms[key] = form


def _flat(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Any] | None:
    """The leaves and the structure of the arguments, if a form can take them: plain tensors in host memory that need no
    gradient, numbers and text."""
    leaves, structure = pytree.tree_flatten((args, kwargs))
    gradients = torch.is_grad_enabled()
    found = False
    for leaf in leaves:
        if type(leaf) is Tensor or type(leaf) is nn.Parameter:
            if not leaf.is_cpu or leaf.layout is not torch.strided or (gradients and leaf.requires_grad):
                return None
            found = True
        elif not isinstance(leaf, SIMPLE):
            return None
    return (leaves, structure) if found else None


def _look_of(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.stride(), leaf.dtype
    return type(leaf), repr(leaf)


def _but_samples(key: Any) -> Any:
    """The rest of a key is equal for calls that differ in the first size of tensors only."""
    return [entry if type(entry) is not tuple or len(entry) != 3 else (entry[0][1:], entry[2]) for entry in key]
