"""A Keeper sees to it that what is frozen stays as it is, or that it is said at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Sequence

import torch
from torch import Tensor

from egeria import _native
from egeria.freeze.packed_tensors import integers, is_plain, plain_parts
from egeria.model.modules import LayerModule
from egeria.tell_once import TellOnce

# There is a copy of what is frozen for so many steps, or all the time where it is small: an optimizer that moves what
# has no gradient does so soon.
_STEPS_OF_A_TRIAL = 128
_SMALL_BYTES = 1 << 26
# On an accelerator a look at contents waits for the device: it comes after 1, 2, 4, ... steps, and at every so many.
_STEPS_BETWEEN_LOOKS = 32
# A look there compares so many numbers of each parameter.
_NUMBERS_ON_DEVICE = 16


@dataclasses.dataclass
class _Kept:
    """A frozen parameter as it was: the hash of its contents, and a copy in host memory as long as there is one."""

    name: str
    part: Tensor
    hash: int = 0
    copy: Tensor | None = None


class Keeper:
    """Looks at the parameters and buffers of frozen layers around each step of an optimizer.

    A change within the step is the optimizer's doing, and is put back as long as there is a copy. A change between two
    steps is the script's own, and stays. Writes that torch counts (Tensor._version) are seen at once. A write that it
    does not count, through `.data`, is seen by the next look where it is to all of a tensor. Otherwise a look on the
    host sees it in the 256th that it compares, and one on an accelerator in the first numbers of a tensor.

    Owned by the training thread.

    Attributes:
      moved: the first parameter that an optimizer moved; None: it moved none.
      own_buffers: the script, or a forward pass, has changed buffers of frozen layers.
    """

    def __init__(self, tell: TellOnce):
        self.moved: str | None = None
        self.own_buffers = False
        self._tell = tell
        self._depth = 0  # how many steps are under way, one inside another
        self._steps = 0  # since the last change of what is frozen
        self._looks_at_device = False  # in the step under way
        self.begin([])

    def begin(self, frozen: Sequence[LayerModule], parameters: Container[Tensor] = ()) -> None:
        """Other layer modules are frozen from here on, and with them `parameters`, which are as they are to stay. Those
        that would not train anyway are the script's own matter (an average that a forward pass moves)."""
        self._steps = 0
        self.own_buffers = False
        named = (entry for module in frozen for entry in module.parameters() if entry[1] in parameters)
        self._kept = [_Kept(*entry) for entry in _named_parts(named)]
        self._buffers = [part for _, part in _named_parts(entry for module in frozen for entry in module.buffers())]
        self._is_small = sum(kept.part.nbytes for kept in self._kept) <= _SMALL_BYTES
        self._take(self._kept)
        self._note_buffers()

    def before_step(self) -> None:
        """An optimizer's step begins: what has changed since the last one is the script's own."""
        self._depth += 1
        if self._depth > 1 or not self._kept:
            return
        self._steps += 1
        power_of_two = self._steps & (self._steps - 1) == 0
        self._looks_at_device = power_of_two or self._steps % _STEPS_BETWEEN_LOOKS == 0
        if changed := self._changed(again=False):
            self._take(changed)
            self._tell(
                "[FROZEN_WEIGHTS_WRITTEN] the script has written to parameters of frozen layers, "
                f"'{changed[0].name}' for one; they stay frozen with their new values"
            )
        if self._steps > _STEPS_OF_A_TRIAL and not self._is_small:
            for kept in self._kept:
                kept.copy = None
        self._look_at_buffers()

    def after_step(self) -> None:
        """An optimizer's step ends: what has changed in it is put back."""
        self._depth = max(0, self._depth - 1)
        if self._depth > 0 or not self._kept or not (changed := self._changed(again=True)):
            return
        self.moved = self.moved or changed[0].name
        self._tell(
            f"[OPTIMIZER_MOVES_FROZEN] an optimizer has moved '{self.moved}', a frozen parameter without a gradient. "
            "All layers train again as soon as all ranks know it, and nothing freezes from there on. Give weight "
            "decay, momentum and averages only to parameters with a gradient, as the optimizers of torch do"
        )
        for kept in changed:
            if kept.copy is not None:
                integers(kept.part).copy_(kept.copy)
        self._take([kept for kept in changed if kept.copy is None])

    def begin_pass(self) -> None:
        """A forward pass begins: a step that was broken off by an exception is over."""
        self._depth = 0

    def _take(self, changed: Sequence[_Kept]) -> None:
        """Takes these for what they are now, and looks for changes from here on."""
        for kept in changed:
            kept.hash = _native.hash_tensors([kept.part])
            if self._steps <= _STEPS_OF_A_TRIAL or self._is_small:
                kept.copy = integers(kept.part).to("cpu", copy=True)
        self._watch = _native.ContentWatch([kept.part for kept in self._kept])
        parts = [integers(kept.part) for kept in self._kept if not kept.part.is_cpu and kept.part.numel() > 0]
        self._on_device = [torch.as_strided(part, (min(_NUMBERS_ON_DEVICE, part.numel()),), (1,)) for part in parts]
        self._seen_on_device = [part.clone() for part in self._on_device]

    def _changed(self, again: bool) -> list[_Kept]:
        """Returns those with other contents. `again`: looks at the part of the contents that the last look was at."""
        suspects = [self._kept[position] for position in self._watch.touched()]
        if not self._watch.unchanged(again) or not self._same_on_device():
            suspects = self._kept
        return [kept for kept in suspects if _native.hash_tensors([kept.part]) != kept.hash]

    def _same_on_device(self) -> bool:
        if not self._on_device or not self._looks_at_device:
            return True
        differences = [torch.ne(*pair).any() for pair in zip(self._on_device, self._seen_on_device)]
        return not bool(torch.stack(differences).any())

    def _note_buffers(self) -> None:
        self._buffer_watch = _native.ContentWatch(self._buffers)
        self._buffers_hash = _native.hash_tensors(self._buffers)

    def _look_at_buffers(self) -> None:
        """DistributedDataParallel writes to buffers in each pass, mostly what they hold."""
        if not self._looks_at_device and not all(part.is_cpu for part in self._buffers):
            return
        touched = self._buffer_watch.touched()
        if not touched and self._buffer_watch.unchanged():
            return
        before = self._buffers_hash
        self._note_buffers()
        if self._buffers_hash != before:
            self.own_buffers = True
            self._tell(
                "[FROZEN_BUFFERS_WRITTEN] the script, or a forward pass in evaluation mode, has written to buffers of "
                "frozen layers; they keep their new values, and the ranks do not compare them until the next switch"
            )


def _named_parts(entries: Iterable[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    return [(name, part) for name, tensor in entries for part in plain_parts(tensor) if is_plain(part)]
