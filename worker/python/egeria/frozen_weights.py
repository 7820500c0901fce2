"""Whether frozen layers are still what they were."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from egeria import _native
from egeria.modules import LayerModule
from egeria.replicas import hash_tensors

# Contents of buffers on an accelerator are compared at every so many writes to them: it waits for the device.
_COMPARE_EVERY = 64
# What any module has, of its own or torch's; its mode is looked at elsewhere.
_OF_TORCH = frozenset(vars(nn.Module()))
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


def plain_settings(module: nn.Module) -> dict[str, Any]:
    """What a module has besides parameters, buffers and submodules, as far as it is plain: numbers, text, tuples and
    lists of those."""
    return {name: value for name, value in vars(module).items() if name not in _OF_TORCH and _is_plain(value)}


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or isinstance(value, (tuple, list)) and all(map(_is_plain, value))


class FrozenSettings:
    """The plain_settings() of frozen modules, as they are when this is made: a scale, the width of a window."""

    def __init__(self, frozen: Sequence[LayerModule]):
        self._kept = [(vars(module), name, copy.deepcopy(value), type(module).__name__)
                      for entry in frozen for unit in entry.units for module in unit.modules()
                      for name, value in plain_settings(module).items()]

    def changed(self) -> str | None:
        """The attribute that has changed, if any."""
        for table, name, value, kind in self._kept:
            now = table.get(name)
            if now is not value and now != value:
                return f"{name} of a {kind}"
        return None


class FrozenWeights:
    """Parameters and buffers of frozen layers, as they are when this is made.

    Parameters are told by identity, memory and version: whoever writes to one has changed it. Buffers are written
    to by DistributedDataParallel before every pass, mostly with what they hold, so that their contents count. On
    an accelerator that is looked at only now and then; DistributedDataParallel writes what rank 0 holds frozen
    too. Writes that no version counts, through `.data`, are found by their contents, in host memory only.
    """

    def __init__(self, frozen: Sequence[LayerModule]):
        modules = [inner for entry in frozen for unit in entry.units for inner in unit.modules()]
        modules += [owner for entry in frozen for _, owner in entry.loose]
        loose = {(owner, name.rpartition(".")[2]) for entry in frozen for name, owner in entry.loose}
        inside = {inner for entry in frozen for unit in entry.units for inner in unit.modules()}
        self._parameters = [_Kept(module._parameters, name) for module in dict.fromkeys(modules)
                            for name, value in module._parameters.items()
                            if value is not None and (module in inside or (module, name) in loose)]
        self._buffers = [_Kept(module._buffers, name) for module in dict.fromkeys(modules)
                         for name, value in module._buffers.items()
                         if value is not None and (module in inside or (module, name) in loose)]
        self._contents = self._hash()
        self._watch = _native.ContentWatch([entry.tensor.detach() for entry in (*self._parameters, *self._buffers)])
        self._writes = 0

    def unchanged(self) -> bool:
        """Whether nothing has been replaced or written to, as far as it matters."""
        if not all(entry.same_memory() and entry.same_version() for entry in self._parameters) \
                or not all(entry.same_memory() for entry in self._buffers) or not self._watch.unchanged():
            return False
        if all(entry.same_version() for entry in self._buffers):
            return True
        self._writes += 1
        on_host = all(entry.tensor.device.type == "cpu" for entry in self._buffers)
        if (on_host or self._writes % _COMPARE_EVERY == 1) and self._hash() != self._contents:
            return False
        for entry in self._buffers:
            entry.version = entry.tensor._version
        return True

    def _hash(self) -> int:
        return hash_tensors([entry.tensor.detach() for entry in self._buffers])


class _Kept:
    """One tensor of a module."""

    def __init__(self, table: dict[str, Tensor | nn.Parameter | None], name: str):
        self._table = table
        self._name = name
        self.tensor: Tensor = table[name]
        self._address = self.tensor.data_ptr()
        self.version = self.tensor._version

    def same_memory(self) -> bool:
        return self._table.get(self._name) is self.tensor and self.tensor.data_ptr() == self._address

    def same_version(self) -> bool:
        return self.tensor._version == self.version
