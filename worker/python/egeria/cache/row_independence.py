"""Shows that a function of batches is one of single samples, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from egeria import _native
from egeria.cache.model_call import Call

# A batch of more bytes, with what is computed of it, is not kept.
_MOST_KEPT = 1 << 24

# Computes b x ... tensors of a call with b samples.
Compute = Callable[[Call], Sequence[Tensor]]


class RowIndependence:
    """A proof, on one real batch and on samples of it with noise, of a function that is computed beside the training.

    Real inputs may be so regular (a blank image) that roundings do not show; with noise they do. Samples with and
    without it are in one batch, so that few batches show it of both.

    Attributes:
      holds: a sample's result depends neither on its place nor on the others, in batches of this size.
    """

    def __init__(self, compute: Compute, call: Call, whole: Sequence[Tensor], decides: bool):
        """Computes two batches, or three where few elements are compared, or a batch decides.

        Args:
          call: the real batch.
          whole: what is computed for it.
          decides: the function asks for a yes or no about the whole batch (Call.conditions()), so that only batches of
            which all is alike are comparable.
        """
        disturbed = call.disturbed()
        noisy = 0 if disturbed is None else call.batch if decides else _native.noisy_rows(whole)
        self._compute = compute
        self._batch = call.batch
        self._samples = call if disturbed is None else _with_noise(call, disturbed, noisy)
        self._conditions = call.conditions() if decides else None
        self._known = _native.prove_rows(self._of, whole, noisy, self._comparable)
        self.holds = bool(self._known)

    def same_in(self, size: int) -> bool:
        """Returns whether samples come out the same in a batch of another size, of which that is proven, too."""
        # Those with noise and those without take turns.
        noisy, real = range(self._batch, self._samples.batch), range(self._batch)
        order = [row for pair in zip(noisy, real) for row in pair] + list(real[len(noisy) :])
        index = [order[position % len(order)] for position in range(size)]
        return self._comparable(index) and _native.same_rows(self._of(index), self._known, index)

    def _of(self, rows: Sequence[int]) -> Sequence[Tensor]:
        return self._compute(self._samples.rows(rows))

    def _comparable(self, rows: Sequence[int]) -> bool:
        return self._conditions is None or self._samples.rows(rows).conditions() == self._conditions


class Alone:
    """Holds whether so many samples alone come out as they do in a whole batch, with and without noise.

    The batch to compare with is kept where it is small, so that another number of samples does not need it again.

    Attributes:
      found: by the number of samples, as far as that was tried.
    """

    def __init__(self) -> None:
        self.found: dict[int, bool] = {}
        self._compared: tuple[Call, Sequence[Tensor]] | None = None

    @property
    def has_batch(self) -> bool:
        """Whether there is a batch to compare with, so that none has to be computed."""
        return self._compared is not None

    def refuse(self, sizes: Sequence[int]) -> None:
        """So many samples may not be computed alone."""
        self.found.update(dict.fromkeys(sizes, False))

    def try_sizes(self, compute: Compute, call: Call, sizes: Sequence[int], decides: bool) -> None:
        """Tries these numbers of samples, up to the first one that may be alone. Each takes some passes of so many, and
        they take the batch once. A function that fails for so few has no such result."""
        both, whole = self._compared or self._computed(compute, call)
        if sum(tensor.nbytes for tensor in (*both.tensors(), *whole)) <= _MOST_KEPT:
            self._compared = both, whole
        conditions = both.conditions() if decides else None

        def comparable(rows: Sequence[int]) -> bool:
            return not decides or both.rows(rows).conditions() == conditions

        for size in sizes:
            self.found[size] = _native.same_alone(lambda rows: compute(both.rows(rows)), whole, size, comparable)
            if self.found[size]:
                break

    @staticmethod
    def _computed(compute: Compute, call: Call) -> tuple[Call, Sequence[Tensor]]:
        disturbed = call.disturbed()
        if disturbed is None:
            both = call.copied()  # a script may write to its batch
        else:
            both = _with_noise(call, disturbed, call.batch).rows(_native.alternating_rows(call.batch))
        return both, compute(both)


def _with_noise(call: Call, disturbed: Call, noisy: int) -> Call:
    """Returns the batch with its last samples behind it, with noise."""
    return call.and_then(disturbed.rows(range(call.batch - noisy, call.batch)))
