"""A value fingerprint holds values in words and in memory, and tells quickly whether they have changed."""

from __future__ import annotations

import collections
import functools
import hashlib
import itertools
import operator
import sys
import types
import uuid
import warnings
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from egeria import _native
from egeria.cache.stable_text import captured, code_words, is_bystander, name_of, plain_words

# These bound the look at one name: the values in one container, the values in all, and the depth. A value beyond them
# counts as an object that only its identity tells.
_MAX_VALUES = 4096
_MAX_DEPTH = 8
# Memory that has no version counter is compared as a whole up to this length, else in parts by a ContentWatch.
_WHOLE_BYTES = 1 << 16
# A look compares an eighth of the contents, which takes less than reading them once to compute with them; it compares
# all where they are small.
_LOOKS = 8
_WHOLE_PREFIX_BYTES = 1 << 20
# Every 64th look compares buffers on an accelerator, since a comparison waits for the device.
_COMPARE_EVERY = 64

# Any module has the first from torch; it is not made of the second.
OF_TORCH = frozenset(vars(nn.Module()))
_NOT_PARTS = OF_TORCH - {"_parameters", "_buffers", "_modules", "training"}
# These attributes differ from process to process: Python's hash of a text, in a GenerationConfig of transformers.
_OF_PROCESS = frozenset(("_original_object_hash",))

# This stands for what only its identity tells, and so nothing in another process.
_HERE = uuid.uuid4().hex

_CONTAINERS = (dict, list, tuple, set, frozenset, collections.deque)
_call = getattr(operator, "call", lambda function: function())  # Python 3.11 has it


class Found(NamedTuple):
    """Describes a dense tensor in a value.

    Attributes:
      counter: the tensor whose version counts writes to it; None: nothing counts them.
      hash: the hash of its contents.
    """

    tensor: Tensor
    counter: Tensor | None
    hash: int


class ValueFingerprint:
    """Remembers values as they are when they are added: numbers, text, functions, tensors, numpy's arrays, and
    containers and objects of all that, as far as a bounded look goes. Bystanders (egeria.cache.stable_text) are not
    looked into.

    Attributes:
      words: the values in words, by name; the same in every process where the values are the same. An object that
        cannot be looked into has other words in each process.
    """

    def __init__(self, elsewhere: Mapping[int, str], spares_device: bool = False):
        """
        Args:
          elsewhere: words for the objects that are not looked into, by id.
          spares_device: buffers on an accelerator are compared only now and then.
        """
        self.words: dict[Hashable, str] = {}
        self._tensors: list[Found] = []
        self._spares_device = spares_device
        self._looks = 0
        self._elsewhere = elsewhere
        self._name: Hashable = None
        self._left = 0
        self._numbers: dict[int, int] = {}  # by id
        self._met: list[Any] = []  # kept so that nothing else gets their ids
        self._opaque: list[tuple[Hashable, Any]] = []  # objects that only their identity tells apart
        # _same_objects() looks at these. The names of dictionaries have a watch of their own, being the most.
        self._tables: list[Mapping[str, Any]] = []
        self._containers: list[Collection[Any]] = []
        self._named: list[tuple[Mapping[str, Any], Sequence[str]]] = []
        self._names = _native.TableWatch()
        self._sources: list[Callable[[], Iterable[Any]]] = []
        self._sizes: tuple[int, list[int]] = 0, []
        self._named_objects: tuple[Any, ...] = ()
        self._objects: tuple[Any, ...] = ()
        # _same_contents() looks at these.
        self._suspects: set[int] = set()  # positions of tensors that may have been written to
        self._counted_elsewhere: list[Found] = []
        self._versions: list[int] = []  # their counters said this
        self._uncounted: list[Tensor] = []
        self._uncounted_hash = 0
        self._watch: Any = None

    def add(self, name: Hashable, value: Any) -> None:
        """Adds a value. Raises TypeError for a tensor in it of a kind that cannot be compared."""
        self._name = name
        self._left = _MAX_VALUES
        self.words[name] = self._describe(value, _MAX_DEPTH)

    def add_classes(self, objects: Mapping[Hashable, Any]) -> None:
        """Adds the classes of objects by name; an object may get another one."""
        kinds = {name: type(value) for name, value in objects.items()}
        self.words |= {name: name_of(kind) for name, kind in kinds.items()}
        self._opaque += kinds.items()
        self._sources.append(functools.partial(map, type, list(objects.values())))

    def add_methods(self, owner: tuple[str, ...], kind: type) -> None:
        """Adds the functions of a class by identity: what they do is for others to say."""
        table = vars(kind)
        names = [name for name, value in table.items() if isinstance(value, types.FunctionType)]
        self._opaque += [((*owner, name), table[name]) for name in names]
        self._containers.append(table)
        self.watch_names(table, names)

    def add_table(self, table: Mapping[str, Any], names: Sequence[str]) -> None:
        """Notes that what these names stand for in a table has been added, and that its other names do not matter."""
        self._tables.append(table)
        self.watch_names(table, names)

    def seal(self, more: int = 0) -> None:
        """Notes that all has been added.

        Args:
          more: see unchanged().
        """
        self._sizes = sum(map(len, self._tables)) - more, list(map(len, self._containers))
        self._seal_objects()
        self._counted_elsewhere = [
            found for found in self._tensors if found.counter is not None and found.counter is not found.tensor
        ]
        self._versions = [found.counter._version for found in self._counted_elsewhere]
        self._uncounted = [found.tensor for found in self._tensors if found.counter is None]
        self._uncounted = [tensor for tensor in self._uncounted if tensor.nbytes <= _WHOLE_BYTES]
        self._uncounted_hash = _native.hash_tensors(self._uncounted)
        tensors = [found.tensor for found in self._tensors]
        self._watch = _native.ContentWatch(tensors, looks=_LOOKS, whole_bytes=_WHOLE_PREFIX_BYTES)

    @property
    def lasting_words(self) -> dict[Hashable, str]:
        """Those words that are the same in every process."""
        return {name: words for name, words in self.words.items() if _HERE not in words}

    def difference(self, other: ValueFingerprint) -> Hashable | None:
        """Returns the first name by which there is something else."""
        for name in self.words.keys() ^ other.words.keys():
            return name
        for name, words in self.words.items():
            if other.words[name] != words:
                return name
        pairs = itertools.zip_longest(self._opaque, other._opaque, fillvalue=(None, None))
        return next((one[0] or another[0] for one, another in pairs if one[1] is not another[1]), None)

    def unchanged(self, more: int = 0) -> bool:
        """Looks quickly, and sees a part of large tensors only. If it returns False, there may be a difference.

        Args:
          more: entries that the tables have for the moment only.
        """
        return self._same_objects(more) and self._same_contents()

    def _same_objects(self, more: int) -> bool:
        """Returns whether all is where it was, or was replaced by plain values that are the same."""
        if (sum(map(len, self._tables)) - more, list(map(len, self._containers))) != self._sizes:
            return False
        if self._names.unchanged() and all(map(operator.is_, self._current(), self._objects)):
            return True
        try:
            pairs = [(self._in_tables(), self._named_objects), (tuple(self._current()), self._objects)]
        except KeyError:
            return False
        if not all(len(now) == len(then) and all(map(_same_plain, now, then)) for now, then in pairs):
            return False
        self._seal_objects()
        return True

    def _seal_objects(self) -> None:
        """Takes the objects that are there now for what is compared."""
        self._names = _native.TableWatch()
        for table, names in self._named:
            self._names.add(table, names)
        self._named_objects = self._in_tables()
        self._objects = tuple(self._current())

    def _same_contents(self) -> bool:
        """Returns whether nothing was written to tensors, or only what they held."""
        if not self._watch.in_place() or not self._watch.unchanged():
            return False
        self._suspects.update(self._watch.touched())
        if self._uncounted and _native.hash_tensors(self._uncounted) != self._uncounted_hash:
            return False
        if [found.counter._version for found in self._counted_elsewhere] != self._versions:
            return False
        self._looks += 1
        spares_device = self._spares_device and self._looks % _COMPARE_EVERY != 1
        for position in sorted(self._suspects):
            tensor, counter, known = self._tensors[position]
            if counter is tensor:
                if spares_device and not tensor.is_cpu and not isinstance(tensor, nn.Parameter):
                    continue
                if _native.hash_tensors([tensor]) != known:
                    return False
            self._suspects.discard(position)
        return True

    def watch_names(self, table: Mapping[str, Any], names: Sequence[str]) -> None:
        """Notes that what these names stand for in a table has been added; its other names may come and go."""
        if isinstance(table, dict):
            self._named.append((table, names))
        elif names:
            self._sources.append(functools.partial(operator.itemgetter(*names, names[0]), table))

    def _in_tables(self) -> tuple[Any, ...]:
        return tuple(table[name] for table, names in self._named for name in names)

    def _current(self) -> Iterable[Any]:
        return itertools.chain.from_iterable(map(_call, self._sources))

    # These put values into words.

    def _describe(self, value: Any, depth: int) -> str:
        if type(value) in weakref.ProxyTypes:
            return "a proxy"
        if (words := self._elsewhere.get(id(value))) is not None or (words := plain_words(value)) is not None:
            return words
        if isinstance(value, types.ModuleType):
            return f"module {value.__name__}"
        if isinstance(value, (type, types.BuiltinFunctionType)) or type(value) is object:
            return name_of(value)
        if id(value) in self._numbers:
            return f"#{self._numbers[id(value)]}"
        self._numbers[id(value)] = len(self._met)
        self._met.append(value)
        self._left -= 1
        if isinstance(value, Tensor):
            return self._describe_tensor(value)
        if isinstance(value, getattr(sys.modules.get("numpy"), "ndarray", ())):
            return self._describe_array(value)
        kind = name_of(type(value))
        if depth == 0 or self._left < 0:
            return self._by_identity(value)
        if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
            return f"{kind} {self._describe_function(value, depth - 1)}"
        if isinstance(value, _CONTAINERS):
            return f"{kind} {self._describe_container(value, depth - 1)}{self._describe_attributes(value, depth - 1)}"
        if is_bystander(type(value)):
            return f"{kind} {value.__name__}" if isinstance(getattr(value, "__name__", None), str) else kind
        if not hasattr(value, "__dict__") and not _slots_of(type(value)):
            return self._by_identity(value)
        return f"{kind} {self._describe_attributes(value, _MAX_DEPTH if isinstance(value, nn.Module) else depth - 1)}"

    def _by_identity(self, value: Any) -> str:
        self._opaque.append((self._name, value))
        return f"{name_of(type(value))} {_HERE}"

    def _describe_tensor(self, tensor: Tensor, counted: bool = True) -> str:
        words = f"tensor on {tensor.device.type}, {tensor.dtype} {tuple(tensor.shape)}"
        if tensor.is_meta:
            return words
        if tensor.layout is torch.strided and tensor.stride() != torch.empty(tensor.shape, device="meta").stride():
            words += f" {tensor.stride()}"  # kernels may round otherwise for another order in memory
        if tensor.layout is torch.sparse_coo:
            parts = [tensor._indices(), tensor._values()]
        elif tensor.layout is torch.strided and not tensor.is_quantized and not is_traceable_wrapper_subclass(tensor):
            parts = [tensor]
        else:
            raise TypeError(f"a {type(tensor).__name__} of layout {tensor.layout} cannot be compared: {self._name}")
        counter = tensor if counted and not tensor.is_inference() else None
        found = [Found(part, counter, _native.hash_tensors([part])) for part in parts]
        self._tensors += found
        return f"{words} {[entry.hash for entry in found]}"

    def _describe_array(self, array: Any) -> str:
        if array.dtype.hasobject:
            return self._by_identity(array)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about arrays that are read only
                return self._describe_tensor(torch.from_numpy(array), counted=False)
        except (TypeError, ValueError):  # torch has no such type, or no such strides
            return f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"

    def _describe_function(self, value: Any, depth: int) -> str:
        if isinstance(value, functools.partial):
            parts = [value.func, value.args, value.keywords]
        elif isinstance(value, types.MethodType):
            parts = [value.__func__, value.__self__]
        elif is_bystander(value):
            parts = []
        else:
            parts = captured(value)
            self._sources.append(functools.partial(captured, value))
        code = hashlib.sha256(code_words(value.__code__).encode()).hexdigest() if hasattr(value, "__code__") else ""
        return f"{name_of(value)} {code} ({', '.join(self._describe(part, depth) for part in parts)})"

    def _describe_container(self, value: Any, depth: int) -> str:
        views = [dict.keys(value), dict.values(value)] if isinstance(value, dict) else [value]
        if not isinstance(value, (tuple, frozenset)):
            self._containers.append(value)
            self._sources += [functools.partial(itertools.islice, view, _MAX_VALUES) for view in views]
        words = [[self._describe(entry, depth) for entry in itertools.islice(view, _MAX_VALUES)] for view in views]
        if isinstance(value, (set, frozenset)):
            words[0].sort()
        rest = self._by_identity(value) if len(value) > _MAX_VALUES else ""
        return f"of {len(value)} ({', '.join(map(': '.join, zip(*words)))}){rest}"

    def _describe_attributes(self, value: Any, depth: int) -> str:
        table = getattr(value, "__dict__", None)
        table = table if isinstance(table, dict) else None
        left_out = _NOT_PARTS if isinstance(value, nn.Module) else _OF_PROCESS
        names = [name for name in table or () if name not in left_out]
        slots = [name for name in _slots_of(type(value)) if hasattr(value, name)]
        if table is not None:
            self._containers.append(table)
            self.watch_names(table, names)
        if slots:
            self._sources.append(functools.partial(_values_of, value, slots))
        parts = [*((name, table[name]) for name in names), *zip(slots, _values_of(value, slots))]
        return ", ".join(f"{name}: {self._describe(part, depth)}" for name, part in parts)


def _slots_of(kind: type) -> list[str]:
    found = [vars(base).get("__slots__", ()) for base in kind.__mro__]
    names = [name for entry in found for name in ([entry] if isinstance(entry, str) else entry)]
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _values_of(value: Any, names: Sequence[str]) -> list[Any]:
    return [getattr(value, name, None) for name in names]


def _same_plain(one: Any, other: Any) -> bool:
    return one is other or (
        type(one) is type(other) and (words := plain_words(one)) is not None and words == plain_words(other)
    )
