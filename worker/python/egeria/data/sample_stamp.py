"""A sample's stamp tells, without loading the sample, whether it is what it was: it is made of what the dataset has
listed for it, and of its files' sizes and times."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset

from egeria.data.variants import Variants

# These bound a look: datasets one inside another, nesting of a sample's entry, parts of a container in it, words.
_MOST_DATASETS = 8
_MOST_DEPTH = 4
_MOST_PARTS = 64
_MOST_WORDS = 256
_FILE_NAME = re.compile(r".*\.\w{1,8}$", re.DOTALL)
# These files belong to the system, and to programs.
_NO_SAMPLES = ("/proc/", "/sys/", "/dev/")
_PROGRAMS = (".py", ".pyc", ".so")

# This is what stat() says of a file; None: there is none.
FileState = tuple[int, int, int, int] | None


class Reading(NamedTuple):
    """Holds samples that were read, and for each of them its stamp, from just before, and the files that were opened
    for it and that the dataset does not list."""

    samples: Any
    stamps: tuple[int, ...]
    files: tuple[tuple[str, ...], ...]


def stamp_of(dataset: Any, index: int, files: Sequence[str] = ()) -> int:
    """Returns a number that changes with a sample's entries in the lists, arrays and tables that are attributes of the
    dataset, and with its files; 0 where neither is known. It costs some 10 microseconds, and 2 for a file.

    Args:
      files: that read() has said of this sample.
    """
    return _sealed(_Listed(dataset, index), {file: state_of(file) for file in files})


def read(dataset: Any, indices: list[Any]) -> Reading:
    """Reads samples as a loader does."""
    listed = [_Listed(dataset, index) for index in indices]
    if getattr(dataset, "__getitems__", None):
        with _opened_files() as opened:
            samples = dataset.__getitems__(indices)
        states = [opened] * len(indices)
    else:
        samples, states = [], []
        for index in indices:
            with _opened_files() as opened:
                samples.append(dataset[index])
            states.append(opened)
    shown = {path for entry in listed for path in entry.files}
    states = [{path: state for path, state in opened.items() if path not in shown} for opened in states]
    return Reading(samples, tuple(map(_sealed, listed, states)), tuple(map(tuple, states)))


def state_of(path: str) -> FileState:
    """Returns a file's size, the times of its last write and of its last change of any kind, and its number: one of
    them differs where a file was written, replaced, or put back with its old time."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def looks_like_a_file(text: str) -> bool:
    return os.sep in text or len(text) < 256 and _FILE_NAME.match(text) is not None


class _Listed:
    """Holds what a dataset's attributes say of a sample.

    Attributes:
      words: that, in bytes.
      files: the states of the files among it.
    """

    def __init__(self, dataset: Any, index: int):
        self.words: list[bytes] = []
        self.files: dict[str, FileState] = {}
        for inside, number in _sources(dataset, index):
            folders = _folders(inside)
            for entry in _entries(inside, number):
                self._add(entry, folders, _MOST_DEPTH)

    def _add(self, value: Any, folders: Sequence[str], depth: int) -> None:
        if len(self.words) >= _MOST_WORDS:
            return
        if isinstance(value, (str, os.PathLike)):
            text = os.fspath(value)
            self.words.append(text if isinstance(text, bytes) else text.encode(errors="replace"))
            if isinstance(text, str) and looks_like_a_file(text):
                self._add_file(text, folders)
        elif isinstance(value, (Tensor, np.ndarray)):
            self.words.append(bytes_of(value))
        elif isinstance(value, bytes):
            self.words.append(value)
        elif isinstance(value, (int, float, complex, np.generic)) or value is None:
            self.words.append(repr(value).encode())
        elif depth > 0:
            for part in _parts_of(value):
                self._add(part, folders, depth - 1)

    def _add_file(self, name: str, folders: Sequence[str]) -> None:
        for path in [name] if os.path.isabs(name) else [name, *(os.path.join(folder, name) for folder in folders)]:
            if (state := state_of(path)) is not None:
                self.files[os.path.abspath(path)] = state


def _sealed(listed: _Listed, opened: Mapping[str, FileState]) -> int:
    if not listed.words and not opened:
        return 0
    files = repr([*listed.files.items(), *opened.items()]).encode()
    # Python's own hash of a text is another one in each process.
    digest = hashlib.blake2b(digest_size=8)
    for word in [files, *listed.words]:
        digest.update(len(word).to_bytes(8, "big") + word)
    return int.from_bytes(digest.digest(), "big", signed=True) | 1


def bytes_of(value: Tensor | np.ndarray) -> bytes:
    """Returns a digest of an array's contents; its type and shape where it has none that can be read."""
    about = f"{value.dtype} {tuple(value.shape)}".encode()
    try:
        array = (
            value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy() if isinstance(value, Tensor) else value
        )
        contents = repr(array.tolist()).encode() if array.dtype == object else np.ascontiguousarray(array).tobytes()
    except (RuntimeError, TypeError, ValueError):
        return about
    return hashlib.blake2b(about + contents, digest_size=16).digest()


def _parts_of(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return [part for item in list(value.items())[:_MOST_PARTS] for part in item]
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)[:_MOST_PARTS]
    return list(getattr(value, "__dict__", {}).values())[:_MOST_PARTS]


def _sources(dataset: Any, index: int) -> Iterator[tuple[Any, int]]:
    """Gives the dataset that has the sample, and those around it, with the sample's index in each."""
    ahead = [(dataset, index)]
    for _ in range(_MOST_DATASETS):
        if not ahead:
            return
        inside, number = ahead.pop()
        if isinstance(inside, Variants):
            ahead.append((inside.dataset, number // inside.k))
            continue
        if isinstance(inside, ConcatDataset):
            number = number + len(inside) if number < 0 else number
            which = next(i for i, size in enumerate(inside.cumulative_sizes) if number < size)
            ahead.append((inside.datasets[which], number - (inside.cumulative_sizes[which - 1] if which > 0 else 0)))
            continue
        yield inside, number
        if isinstance(inside, Subset):
            ahead.append((inside.dataset, int(inside.indices[number])))
        else:
            ahead += [(other, number) for other in _wrapped(inside)]


def _wrapped(dataset: Any) -> list[Any]:
    """Returns the datasets that this one is around, as far as they have as many samples."""
    size = _size(dataset)
    named = getattr(dataset, "__dict__", {})
    lists = [value[:_MOST_DATASETS] for value in named.values() if type(value) in (list, tuple)]
    inside = {id(value): value for value in [*named.values(), *sum(map(list, lists), [])] if isinstance(value, Dataset)}
    if "dataset" in named:
        inside[id(named["dataset"])] = named["dataset"]
    return [value for value in inside.values() if _size(value) == size]


def _entries(dataset: Any, index: int) -> Iterator[Any]:
    """Gives what is listed for a sample, in attributes and in short containers there."""
    size = _size(dataset)
    values = list(getattr(dataset, "__dict__", {}).values())
    for value in values:
        if type(value) in (list, tuple) and len(value) != size and len(value) <= _MOST_PARTS:
            values += [part for part in value if isinstance(part, (list, np.ndarray, Tensor))]
        elif isinstance(value, np.memmap):
            yield value.filename  # a row would have to be read from there
        elif hasattr(type(value), "iloc") and _size(value) == size:  # it is a table of pandas
            row = value.iloc[index]
            yield list(row) if hasattr(type(row), "iloc") else row
        elif isinstance(value, dict) and _size(value) == size:
            yield value.get(index)
        elif isinstance(value, (list, tuple, np.ndarray, Tensor)) and _size(value) == size:
            yield value[index]


def _size(value: Any) -> int:
    try:
        return len(value)
    except TypeError:
        return -1


def _folders(dataset: Any) -> list[str]:
    """Returns the folders that attributes name."""
    values = list(getattr(dataset, "__dict__", {}).values())
    texts = [os.fspath(value) for value in values if isinstance(value, (str, os.PathLike))]
    return [text for text in texts if isinstance(text, str) and _is_folder(text)]


@functools.lru_cache(maxsize=256)
def _is_folder(path: str) -> bool:
    return os.path.isdir(path)


# Where a dataset makes a file's name itself, only opening it shows the name.


class _Opened(threading.local):
    states: dict[str, FileState] | None = None


_opened = _Opened()
_is_hooked = False


@contextlib.contextmanager
def _opened_files() -> Iterator[dict[str, FileState]]:
    """Gives a dict that gets the files that this thread opens for reading meanwhile, by Python's means, as they were
    then."""
    global _is_hooked  # pylint: disable=global-statement
    if not _is_hooked:
        _is_hooked = True
        sys.addaudithook(_note)  # forked processes have it, too
    before, _opened.states = _opened.states, {}
    try:
        yield _opened.states
    finally:
        _opened.states = before


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or (states := _opened.states) is None:
        return
    path, _, flags = arguments
    if isinstance(path, (str, bytes, os.PathLike)) and not flags & (os.O_WRONLY | os.O_RDWR):
        name = os.path.abspath(os.fsdecode(path))
        if not name.startswith(_NO_SAMPLES) and not name.endswith(_PROGRAMS):
            states.setdefault(name, state_of(name))
