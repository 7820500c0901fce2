"""Proves on one real batch that what a network returns for a sample may be used again."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from egeria.cache.cut_proof import Proof
from egeria.cache.model_call import Call
from egeria.cache.pass_outcome import same
from egeria.cache.prefix_cut import shadow_of
from egeria.cache.refused import Refused
from egeria.cache.skip_checks import check_hooks
from egeria.cached_calls.kept_output import KeptOutput
from egeria.freeze.replicas import is_fully_sharded
from egeria.model.isolation import held_by
from egeria.model.plain_copies import Ours
from egeria.model.shadow import NoShadow, Shadow

# A sentence names so many modules at most.
_NAMED = 3


class Recording(NamedTuple):
    """Says what autograd records in a call. Kernels differ by it."""

    gradients: bool
    inference: bool

    @classmethod
    def now(cls) -> Recording:
        return cls(torch.is_grad_enabled(), torch.is_inference_mode_enabled())

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """A context in which it is so."""
        with torch.inference_mode(self.inference), torch.set_grad_enabled(self.gradients):
            yield


@dataclasses.dataclass
class WholeCall:
    """Describes a network in calls of one shape. It stands in the place of a Cut (egeria.cache.prefix_cut).

    Attributes:
      output: what such a call returns.
      has_own_forward: the instance has a forward function of its own, which is what calls come to.
      keep: what it returns is given to this function.
      recording: of these calls.
      decides: as that of a Cut.
      unread: likewise; all arguments count.
    """

    output: KeptOutput
    has_own_forward: bool
    keep: Callable[[Any], Any] | None
    recording: Recording
    decides: bool
    unread: ClassVar[frozenset[int]] = frozenset()

    def compute(self, shadow: Shadow, call: Call, check: Callable[[], None] | None = None) -> list[Tensor]:
        """Computes the tensors that are kept, by a pass of a shadow.

        Args:
          check: called when they are there.

        Raises:
          Refused: [NO_SHADOW], [OUTPUT_DIFFERS].
          Exception: what the network raises.
        """
        with _side_pass(shadow, self.recording):
            tensors = self.output.tensors_of(_run(shadow, call, self.keep, self.has_own_forward), call)
            if check is not None:
                check()
            return [tensor.detach().clone() for tensor in tensors]


def prove_output(
    network: nn.Module,
    keep: Callable[[Any], Any] | None,
    call: Call,
    recording: Recording,
    has_own_forward: bool,
    rows: bool = True,
) -> Proof:
    """Proves that calls like this one may be served, with results of other calls put together.

    1. Two passes with the same input give the same to the bit, draw no random numbers, and the second leaves
       attributes, containers and buffers as the first has left them.
    2. With samples in other places, and in the company of samples with noise, each sample's result is the same to the
       bit.

    All of it happens on a shadow (egeria.model.shadow), so that nothing of the network runs.

    Args:
      rows: False: the caller sees to 2.

    Raises:
      Refused: it is not so. Whatever the network raises is [RAISES]. Names that are raised here: SHARDED, COLLECTIVE,
        HOOKED, RANDOM, KEEPS_STATE, BATCH_DEPENDENT; all others from KeptOutput, shadow_of().
    """
    _check(network)
    try:
        proof = _prove(network, keep, call, recording, has_own_forward)
        if rows:
            proof.rows  # noqa: B018  # it may raise
        return proof
    except Refused as error:
        if error.name in ("RANDOM", "KEEPS_STATE", "BATCH_DEPENDENT") and (names := _in_training_mode(network)):
            text = str(error).removeprefix(f"[{error.name}] ")
            raise Refused(error.name, f"{text}; {names} in training mode: call .eval() on the network") from error
        raise
    except Exception as error:  # pylint: disable=broad-exception-caught  # whatever a network's code raises
        raise Refused("RAISES", f"{type(error).__name__}: {str(error)[:300]}") from error


def _prove(
    network: nn.Module, keep: Callable[[Any], Any] | None, call: Call, recording: Recording, has_own_forward: bool
) -> Proof:
    if has_own_forward and not isinstance(vars(network).get("forward"), Ours):
        raise Refused("NO_SHADOW", "two functions stand for its forward method: call egeria.cached() behind both")
    shadow = shadow_of(network)

    with _side_pass(shadow, recording):
        output = KeptOutput(_run(shadow, call, keep, has_own_forward), call)
    whole = WholeCall(output, has_own_forward, keep, recording, decides=bool(call.conditions()))
    state, before = _State(shadow.model), shadow.random_states()

    def check_chance() -> None:
        if shadow.random_states() != before:
            raise Refused("RANDOM", "random numbers are drawn")

    tensors = whole.compute(shadow, call, check_chance)
    state.compare(shadow.model)
    stand_in: Any = whole
    return Proof(stand_in, tensors, functools.partial(whole.compute, shadow), call)


def _check(network: nn.Module) -> None:
    for name, module in network.named_modules():
        if is_fully_sharded(module):
            raise Refused("SHARDED", "it is sharded: ranks whose calls are served would not gather parameters")
        if isinstance(module, nn.SyncBatchNorm) and module.training:
            raise Refused("COLLECTIVE", f"'{name}' talks to other ranks in training mode: call .eval() on the network")
        if module is not network:
            check_hooks(name, module)


def _run(shadow: Shadow, call: Call, keep: Callable[[Any], Any] | None, has_own_forward: bool) -> Any:
    """Calls the shadow as what is inside egeria.cached() is called. A function that somebody has put around that later
    leads to the network itself."""
    model = shadow.model
    value = call.run(model.forward if has_own_forward else functools.partial(type(model).forward, model))
    return value if keep is None else keep(value)


@contextlib.contextmanager
def _side_pass(shadow: Shadow, recording: Recording) -> Iterator[None]:
    """A context for a pass of a shadow. Autocast keeps nothing of it.

    Raises:
      Refused: [NO_SHADOW] the pass would reach beyond the shadow.
    """
    cached = torch.is_autocast_cache_enabled()
    try:
        with shadow.running(), recording.again():
            try:
                torch.set_autocast_cache_enabled(False)
                yield
            finally:
                torch.set_autocast_cache_enabled(cached)
    except NoShadow as error:
        raise Refused("NO_SHADOW", str(error)) from error


def _in_training_mode(network: nn.Module) -> str:
    """Names modules whose training mode makes a difference."""
    kinds = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase, nn.RNNBase, nn.MultiheadAttention, nn.RReLU)
    training = [(name, module) for name, module in network.named_modules() if module.training]
    named = [(name, module) for name, module in training if isinstance(module, kinds)] or training
    words = [f"'{name}' ({type(module).__name__})" if name else type(module).__name__ for name, module in named]
    if not words:
        return ""
    more = f" and {len(words) - _NAMED} more" if len(words) > _NAMED else ""
    return f"{', '.join(words[:_NAMED])}{more} {'is' if len(words) == 1 else 'are'}"


class _State:
    """Remembers what a pass may leave on modules: attributes, what is in containers, buffers."""

    def __init__(self, model: nn.Module):
        self._containers, tensors = held_by(model)
        self._tables = {
            (name, table): dict(values)
            for name, module in model.named_modules()
            for table, values in (("", vars(module)), *_tables_of(module))
        }
        self._contents = [list(_flat(container)) for container in self._containers]
        self._tensors = [(tensor, tensor.detach().clone()) for tensor in (*model.buffers(), *tensors)]

    def compare(self, model: nn.Module) -> None:
        """Raises Refused: [KEEPS_STATE] something is not what it was."""
        for (name, table), before in self._tables.items():
            module = model.get_submodule(name)
            now = vars(module)[table] if table else vars(module)
            for key in before.keys() | now.keys():
                if key not in before or key not in now or not _unchanged(before[key], now[key]):
                    raise Refused(
                        "KEEPS_STATE",
                        f"a call sets '{key}' of {type(module).__name__}{f' {name!r}' if name else ''}, and a served "
                        "call would not",
                    )
        for container, before in zip(self._containers, self._contents):
            after = list(_flat(container))
            if len(after) != len(before) or not all(map(_unchanged, before, after)):
                raise Refused("KEEPS_STATE", "a call adds to a container of the network, and a served call would not")
        if not all(same(tensor.detach(), before) for tensor, before in self._tensors):
            raise Refused("KEEPS_STATE", "a call writes to a buffer of the network, and a served call would not")


def _tables_of(module: nn.Module) -> list[tuple[str, dict[str, Any]]]:
    return [(name, vars(module)[name]) for name in ("_parameters", "_buffers", "_modules")]


def _flat(container: Any) -> Iterator[Any]:
    if isinstance(container, dict):
        for entry in container.items():
            yield from entry
    else:
        yield from container


def _unchanged(before: Any, after: Any) -> bool:
    plain = (bool, int, float, str, bytes, torch.dtype, torch.device, torch.Size)
    return before is after or (type(before) is type(after) and isinstance(before, plain) and before == after)
