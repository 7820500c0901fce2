"""This file tells whether frozen layers are still what they were."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from torch import Tensor

from egeria import _native
from egeria.freeze.replicas import hash_tensors
from egeria.model.modules import LayerModule

# Contents of buffers on an accelerator are compared at every so many writes to them, since that waits for the device.
_COMPARE_EVERY = 64


class FrozenWeights:
    """Remembers the parameters and buffers of frozen layers as they are when it is made.

    Parameters are told by identity, memory and version: whoever writes to one has changed it. Buffers are written
    to by DistributedDataParallel before every pass, mostly with what they hold, so that their contents count. On
    an accelerator their contents are looked at only now and then; DistributedDataParallel writes what rank 0 holds
    frozen too. Writes that no version counts, through `.data`, are found by the contents, in host memory only.
    """

    def __init__(self, frozen: Sequence[LayerModule]):
        inside = {inner: None for entry in frozen for unit in entry.units for inner in unit.modules()}
        loose = [(owner, name.rpartition(".")[2]) for entry in frozen for name, owner in entry.loose]
        parameters = [(module._parameters, name) for module in inside for name in module._parameters]
        buffers = [(module._buffers, name) for module in inside for name in module._buffers]
        self._parameters = _Kept(parameters + [(owner._parameters, name) for owner, name in loose])
        self._buffers = _Kept(buffers + [(owner._buffers, name) for owner, name in loose])
        self._contents = self._buffers.hash()
        self._watch = _native.ContentWatch([*self._parameters.tensors, *self._buffers.tensors])
        self._writes = 0

    def unchanged(self) -> bool:
        """Returns whether nothing has been replaced or written to, as far as it matters."""
        if (
            not self._parameters.same_memory()
            or not self._parameters.same_versions()
            or not self._buffers.same_memory()
            or not self._watch.unchanged()
        ):
            return False
        if self._buffers.same_versions():
            return True
        self._writes += 1
        on_host = all(tensor.device.type == "cpu" for tensor in self._buffers.tensors)
        if (on_host or self._writes % _COMPARE_EVERY == 1) and self._buffers.hash() != self._contents:
            return False
        self._buffers.note_versions()
        return True


class _Kept:
    """Keeps tensors, and where modules have them."""

    def __init__(self, places: Sequence[tuple[dict[str, Tensor | None], str]]):
        """
        Args:
          places: tables and names; those without a tensor are left out.
        """
        places = [(table, name) for table, name in places if table.get(name) is not None]
        self._tables = [table for table, _ in places]
        self._names = [name for _, name in places]
        self._found = [table[name] for table, name in places]
        self._addresses = [tensor.data_ptr() for tensor in self._found]
        self.tensors = [tensor.detach() for tensor in self._found]
        self.note_versions()

    def same_memory(self) -> bool:
        return (
            all(map(operator.is_, map(dict.get, self._tables, self._names), self._found))
            and [tensor.data_ptr() for tensor in self._found] == self._addresses
        )

    def same_versions(self) -> bool:
        return [tensor._version for tensor in self._found] == self._versions

    def note_versions(self) -> None:
        self._versions = [tensor._version for tensor in self._found]

    def hash(self) -> int:
        return hash_tensors([tensor.detach() for tensor in self._found])
