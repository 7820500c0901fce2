"""A ShallowerPrefix was kept before more of the model was frozen, and spares the deeper prefix its layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from torch import Tensor, nn

from egeria import _native
from egeria.cache.forward_patches import ForwardPatches
from egeria.cache.frozen_part import Part
from egeria.cache.kept_prefix import KeptPrefix
from egeria.cache.model_call import Call
from egeria.cache.prefix_cut import Cut, shadow_of
from egeria.cache.prefix_store import PrefixStore
from egeria.cache.proven import Proven
from egeria.cache.refused import Refused
from egeria.freeze.wishes import has_gradient
from egeria.model.modules import has_parameters

# A prefix that lacked samples of so many passes in a row was not kept for long enough to be of use.
_MOST_LACKING = 8


class ShallowerPrefix:
    """Lets a pass that is computed to keep a deeper prefix begin behind this one.

    A pass may begin there in calls that were proven for this prefix while only it was frozen. That it may still do so,
    with more of the model frozen and in another mode, is shown once for each shape of call: what crosses the deeper cut
    has to be the same to the bit as in a pass from the start.

    Owned by the training thread.

    Attributes:
      name: the prefix's fingerprint in the store.
      forward_seconds: of a pass of its layers.
    """

    def __init__(
        self, kept: KeptPrefix, cache: _native.ActivationCache, name: bytes, form: str, forward_seconds: float
    ):
        """
        Args:
          kept: the prefix as it was served so far.
          cache: a connection of its own, since each serves one prefix.
          form: how activations are kept: see Config.cache_form().
        """
        self.name = name
        self.forward_seconds = forward_seconds
        self._cache = cache
        self._kept = kept.through(PrefixStore(cache, name, form, kept.store.ragged))
        self._resting: set[nn.Module] = set()  # besides the prefix
        self._checked: list[tuple[Proven, Proven]] = []  # proofs of this and the deeper prefix for which that was shown
        self._lacking = 0  # passes in a row, but for those that the store was late in, of which it lacked a sample

    @property
    def rests(self) -> bool:
        """Whether none of its parameters trains."""
        return not any(has_gradient(parameter) for parameter in _parameters(self._kept.part))

    def is_within(self, part: Part) -> bool:
        """Whether the part holds all of this prefix, and more."""
        return set(_parameters(self._kept.part)) < set(_parameters(part))

    def hold(self, resting: Iterable[nn.Module]) -> None:
        """These modules do not train now. Freezing may have changed their modes, which proofs of this prefix do not
        count."""
        units = [unit for entry in self._kept.part.frozen for unit in entry.units if has_parameters(unit)]
        inside = {inner for unit in units for inner in unit.modules()}
        self._resting = {module for module in resting if module not in inside}
        self._checked.clear()

    def expect(self, upcoming: Sequence[Sequence[int]]) -> None:
        """Reads the samples of the batches to come ahead."""
        self._kept.expect(upcoming if self._may_have_all else ())

    def begin_behind(
        self,
        patches: ForwardPatches,
        model: nn.Module,
        call: Call,
        ids: list[int],
        deeper: Proven,
        patience: float,
        allowed: Callable[[], bool],
    ) -> bool:
        """Lets the next forward pass begin behind this prefix, if the store has all of its samples.

        Args:
          deeper: the cut that the pass is computed for.
          patience: seconds to wait for the store.
          allowed: see Cut.skip().

        Returns:
          Whether it does.

        Raises:
          Refused: [STORE_DIFFERS] the deeper cut does not get what it gets in a pass from the start.
        """
        if not self._may_have_all:
            return False
        proven = self._kept.proofs.known(call, self._resting)
        if proven is None or proven.cut.forms is not None or call.source is not None:
            return False
        asked = self._kept.samples(call, proven, ids)
        tensors, reasons, fits = self._kept.fetch(proven.cut, asked, patience)
        if not fits or any(reasons):
            self._lacking += "absent" in reasons
            return False
        self._lacking = 0
        crossing = proven.cut.placed(tensors)
        if not any(one is proven and other is deeper for one, other in self._checked):
            self._check(model, call, proven.cut, crossing, deeper.cut)
            self._checked.append((proven, deeper))
        proven.cut.skip(patches, crossing, allowed)
        return True

    def close(self, forget: bool) -> None:
        """With `forget` nothing is kept of it any more."""
        if forget:
            self._kept.store.forget()
        self._cache.flush(1.0)
        self._cache.close()

    @property
    def _may_have_all(self) -> bool:
        """Whether the store is likely to have all samples of a batch."""
        return self._lacking < _MOST_LACKING

    def _check(self, model: nn.Module, call: Call, cut: Cut, crossing: Sequence[Tensor], deeper: Cut) -> None:
        shadow = shadow_of(model)
        whole = deeper.compute(shadow, call)
        spared = deeper.compute(shadow, call, behind=(cut, [tensor.clone() for tensor in crossing]))
        if not _native.same_rows(whole, spared, range(call.batch)):
            raise Refused(
                "STORE_DIFFERS", "a pass that begins behind the earlier frozen layers computes something else"
            )


def _parameters(part: Part) -> list[nn.Parameter]:
    return [parameter for layer in part.frozen for _, parameter in layer.parameters()]
