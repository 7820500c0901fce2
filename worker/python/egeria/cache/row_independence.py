"""Shows that a function of batches is one of single samples, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from egeria import _native
from egeria.cache.model_call import Call

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


def same_alone(compute: Compute, call: Call, sizes: Sequence[int], decides: bool) -> dict[int, bool]:
    """Returns whether so many samples alone come out as they do in the whole batch, with and without noise; of these
    numbers, up to the first one of which that is so. It takes the batch once, and each number of samples some times. A
    function that fails for so few has no such result."""
    disturbed = call.disturbed()
    both = call
    if disturbed is not None:
        both = _with_noise(call, disturbed, call.batch).rows(_native.alternating_rows(call.batch))

    def comparable(rows: Sequence[int]) -> bool:
        return not decides or both.rows(rows).conditions() == call.conditions()

    whole, found = compute(both), {}
    for size in sizes:
        found[size] = _native.same_alone(lambda rows: compute(both.rows(rows)), whole, size, comparable)
        if found[size]:
            break
    return found


def _with_noise(call: Call, disturbed: Call, noisy: int) -> Call:
    """Returns the batch with its last samples behind it, with noise."""
    return call.and_then(disturbed.rows(range(call.batch - noisy, call.batch)))
