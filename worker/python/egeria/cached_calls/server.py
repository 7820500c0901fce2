"""A CallServer gives a network's calls what the cache has kept of earlier ones."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from egeria import _native
from egeria.cache.computed_alone import fill_in
from egeria.cache.cut_proof import Proof
from egeria.cache.gate import CacheGate
from egeria.cache.model_call import Call, Settings, UnusualCall, rows_of
from egeria.cache.module_fingerprint import ModuleFingerprint
from egeria.cache.prefix_cut import shadow_of
from egeria.cache.prefix_store import fingerprint
from egeria.cache.proofs_by_shape import Proofs
from egeria.cache.proven import Proven
from egeria.cache.refused import Refused
from egeria.cache.repeated_samples import Repeats
from egeria.cache.settling import Settling
from egeria.cached_calls.cache_line import CacheLine, keys_of
from egeria.cached_calls.output_proof import Recording, WholeCall, prove_output
from egeria.cached_calls.recurrence import Recurrence
from egeria.model.inputs import GraphError, batch_of
from egeria.model.isolation import device_of, in_own_pass
from egeria.model.pass_hooks import is_capturing
from egeria.model.shadow import Shadow
from egeria.tell_once import TellOnce

_logger = logging.getLogger("egeria")

# A network is left alone after this many failures in a row, and when more settings than that are refused.
_MAX_FAILURES = 3
_MAX_SETTINGS = 16


class _Proofs(Proofs):
    """Proofs about a whole network."""

    most_shapes = 32  # texts come in many lengths
    compares_first = True

    def __init__(
        self,
        network: nn.Module,
        keep: Callable[[Any], Any] | None,
        gate: CacheGate,
        recording: Recording,
        has_own_forward: bool,
    ):
        super().__init__(network, [], gate)
        self._has_own_forward = has_own_forward
        self._settings: Any = _CallSettings(network, recording)
        self._keep = keep
        self._recording = recording

    def _prove(self, call: Call, rows: bool) -> Proof:
        return prove_output(self._model, self._keep, call, self._recording, self._has_own_forward, rows)


class _CallSettings(Settings):
    """Settings of calls in which autograd records so much."""

    def __init__(self, network: nn.Module, recording: Recording):
        super().__init__(network)
        self._recording = recording

    def now(self) -> tuple[Any, ...]:
        return *super().now(), *self._recording


class _Served:
    """Holds what a call returns without the network."""

    def __init__(self, value: Any):
        self.value = value


_Computed = Callable[[Any], None]  # is given what the network has returned


class CallServer:
    """Serves the calls of one network.

    A call is served only where it was proven, on a real batch and to the bit, that it may be, and only as long as
    weights, code and attributes are what they were then. All else is computed as without this. Calls in other threads
    meanwhile, in forked children, under compilers and transforms are computed, too.
    """

    def __init__(self, network: nn.Module, keep: Callable[[Any], Any] | None, line: CacheLine, always: bool):
        """
        Args:
          keep: what the network returns is given to it, in each call.
          line: to the cache.
          always: calls are served whether or not that saves time.
        """
        self.gate = CacheGate(device_of(network), Repeats(), always)
        self.line = line
        self.refusal: Refused | None = None  # why calls are computed at present
        self._network = network
        self._has_own_forward = "forward" in vars(network)
        self._keep = keep
        self._look_at_structure()
        self._tell = TellOnce()
        self._tell.whose = f"cached {type(network).__name__}: "
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._is_called = False
        self._failures = 0  # in a row
        self._refused: dict[Any, Refused] = {}  # by _settings_now()
        self._proofs: dict[Any, _Proofs] = {}  # likewise
        self._device = torch.device("cpu")
        self._recurrence = Recurrence()
        self._shadow: Shadow | None = None  # computes samples alone
        self._has_kept_rest = False  # an epoch's last batch
        self._salt = b""  # the newest proof has it
        self._contents: ModuleFingerprint | None = None
        self._fingerprint = b""
        self._is_changed = False  # the contents are others than these
        self._settling = Settling(lambda: self.gate.ledger.counters()["passes_skipped"])

    def call(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A call of the network, whose own forward function is `original`."""
        if torch.compiler.is_compiling() or not self._may_look() or not self._lock.acquire(blocking=False):
            return self.kept(original(*args, **kwargs))
        try:
            step = self._begin(args, kwargs)
            if isinstance(step, _Served):
                return step.value
            value = self.kept(original(*args, **kwargs))
            if step is not None:
                self._end(step, value)
            return value
        finally:
            self._lock.release()

    def kept(self, value: Any) -> Any:
        """Returns what a call returns, where the network returns this."""
        return value if self._keep is None else self._keep(value)

    def state(self) -> dict[str, Any]:
        """Returns the ledger's counters and estimates; egeria.cache_summary() explains them."""
        found = {**self.gate.ledger.counters(), **self.gate.ledger.estimates()}
        found["served"] = found.pop("passes_skipped")
        found["calls"] = found.pop("passes")
        del found["passes_spared"]  # there is no shallower network
        found["spent_seconds"] = self.gate.watch.seconds
        found.update((f"cache_{name}", value) for name, value in self.line.counters().items())
        if self.refusal is not None:
            found.update(state="refused", reason=str(self.refusal))
        return found

    # These methods are about one call.

    def _may_look(self) -> bool:
        """Whether this is a plain call in the process that has the network."""
        return (
            self.line.is_configured
            and os.getpid() == self._pid
            and not nn.modules.module._has_any_global_hook()
            and not torch.jit.is_tracing()
            and not is_capturing()
            and not in_own_pass()
            and torch._C._len_torch_dispatch_stack() == 0
            and all(isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())
            and torch._C._functorch.peek_interpreter_stack() is None
            and torch.autograd.forward_ad._current_level < 0
        )

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Served | _Computed | None:
        """Returns what is served, or what is to be told of the value that is computed, or None. Raises nothing."""
        recording = Recording.now()
        if not self._is_called:  # a first call fills in what networks make when they are used first
            self._is_called = True
            return self._computed(lambda value: self._start(args, kwargs, recording, value))
        with self._guarded():
            return self._prepare(args, kwargs, recording)
        return None

    def _end(self, step: _Computed, value: Any) -> None:
        """The network has computed a value. Raises nothing."""
        self.gate.ledger.end_compute()
        self.gate.ledger.resume()
        with self._guarded():
            step(value)
            self._failures = 0

    def _start(self, args: tuple[Any, ...], kwargs: dict[str, Any], recording: Recording, value: Any) -> None:
        """The first call has been computed."""
        step = self._prepare(args, kwargs, recording)
        if step is not None and not isinstance(step, _Served):
            step(value)

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """A context for what is done beside the network, from which nothing is raised."""
        settings = self._settings_now(Recording.now())
        with self.gate.watch:
            try:
                yield
            except (UnusualCall, GraphError) as error:
                self._tell.note("a call is computed", error)
                self.gate.ledger.missed("unusual_call", 1)
            except Refused as error:
                self._refuse(error, settings)
            except Exception as error:  # pylint: disable=broad-exception-caught  # never in the way
                self._fail(error, settings)

    def _look_at_structure(self) -> None:
        self._settings = Settings(self._network)
        self._submodules = list(self._network.modules())[1:]

    def _settings_now(self, recording: Recording) -> tuple[Any, ...]:
        """Returns what a call depends on besides its arguments and the network's contents."""
        hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in self._submodules)
        return *self._settings.now(), *recording, hooks

    def _check_gradients(self, recording: Recording) -> None:
        """Raises Refused: [NEEDS_GRADIENT] autograd would record the call."""
        if recording.gradients:
            for name, parameter in self._network.named_parameters():
                if parameter.requires_grad:
                    raise Refused(
                        "NEEDS_GRADIENT",
                        f"'{name}' requires a gradient: call .requires_grad_(False) on the network, or call it under "
                        "torch.no_grad()",
                    )

    def _is_refused(self, settings: Any) -> bool:
        """Whether calls with these settings are not served at all."""
        if (refusal := self._refused.get(settings)) is not None:
            self.refusal = refusal
        return refusal is not None or self._failures >= _MAX_FAILURES

    def _is_known(self, samples: int) -> bool:
        """Returns whether the network is what the cache knows it as.

        Raises:
          Refused: [WEIGHTS_CHANGED], [SETTING_CHANGED] it is not any more.
        """
        if not self._is_changed:
            try:
                assert self._contents is not None
                self._contents.check_unchanged(0)
            except Refused as error:
                self._is_changed = True
                text = str(error).removeprefix(f"[{error.name}] ")
                raise Refused(error.name, f"{text}; calls are served when it is back") from error
        elif not self._has_settled():
            self.gate.ledger.missed("changed", samples)
            return False
        if self.refusal is not None:
            _logger.info("egeria: %scalls may be served again", self._tell.whose)
        self.refusal = None
        return True

    def _has_settled(self) -> bool:
        """Whether a network that was changed is served again from now on."""
        if not self._settling.looks_now():
            return False
        contents = ModuleFingerprint(self._network, None, function=self._keep)
        seen = fingerprint(contents)
        if not self._settling.returns(seen, self._fingerprint):
            return False
        if seen == self._fingerprint:
            self._contents = contents
        else:
            self._know(contents, seen)
        self._settling.await_change()
        self._is_changed = False
        return True

    def _know(self, contents: ModuleFingerprint, seen: bytes) -> None:
        """The network has these contents, with this fingerprint, from now on."""
        self._contents = contents
        self._fingerprint = seen
        self._device = device_of(self._network)
        self._shadow = None
        self._look_at_structure()
        self._proofs.clear()
        self.gate.follow()
        self._tell_whether_samples_repeat()
        self.line.follow(self._fingerprint, self._device)

    def _prepare(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], recording: Recording
    ) -> _Served | _Computed | None:
        settings = self._settings_now(recording)
        self._check_gradients(recording)
        if self._is_refused(settings):
            return None
        with torch.inference_mode(False):
            with torch.set_grad_enabled(recording.gradients):
                call = Call(args, kwargs, batch_of(args, kwargs))
            with torch.no_grad():
                return self._ask_or_prove(call, recording, settings)

    def _ask_or_prove(self, call: Call, recording: Recording, settings: Any) -> _Served | _Computed | None:
        ledger = self.gate.ledger
        if self._contents is None or self._device != device_of(self._network):
            contents = ModuleFingerprint(self._network, None, function=self._keep)
            self._know(contents, fingerprint(contents))
        if not ledger.begin(call.batch, self._device.type == "cpu"):
            self._look_for_repeats(call)
            return None
        ledger.ask()
        if not self._is_known(call.batch):
            return None
        if settings not in self._proofs:
            if len(self._proofs) == _MAX_SETTINGS:
                self._proofs.pop(next(iter(self._proofs)))
            self._proofs[settings] = _Proofs(self._network, self._keep, self.gate, recording, self._has_own_forward)
        proofs = self._proofs[settings]
        if (proven := proofs.find(call)) is None:
            ledger.missed("unproven", call.batch)
            begin = ledger.now()
            self._keep_rest(proofs, call)
            ledger.spent(begin)
            return None
        self._salt = proven.salt
        ids, hashes = keys_of(proven.keys(call, Call.digests)[0])
        self._note(ids)
        if proven.confirmed:
            return self._ask(proofs, proven, call, ids, hashes)
        ledger.missed("unproven", call.batch)
        return self._confirm(proven, call, ids, hashes)

    def _note(self, ids: list[int]) -> None:
        if self._recurrence.note(ids):
            self.gate.ledger.epoch_passed()
        self._tell_whether_samples_repeat()

    def _tell_whether_samples_repeat(self) -> None:
        if self._recurrence.known is not None:
            self.gate.ledger.samples_repeat(self._recurrence.known)

    def _look_for_repeats(self, call: Call) -> None:
        """Nothing is asked or kept. Where no input has come again, one sample of the call is looked at."""
        if not self._recurrence.known and self._salt:
            self._note(keys_of(call.rows([0]).digests(self._salt))[0])

    def _ask(
        self, proofs: _Proofs, proven: Proven, call: Call, ids: list[int], hashes: list[int]
    ) -> _Served | _Computed:
        """Returns what the cache has of this call, with what it lacks computed alone."""
        ledger, store = self.gate.ledger, self.line.store
        whole: Any = proven.cut
        tensors, reasons = store.get(ids, hashes, self.gate.patience)
        missing = ledger.answer(reasons, whole.output.fits(tensors))
        if len(missing) == len(ids):
            tensors = ()
        self._recurrence.found(len(ids) - len(missing))
        parts = proofs.alone(proven, call, missing) if missing and tensors else []
        rows = fill_in(tensors, missing, parts, lambda part: self._compute_beside(whole, part)) if parts else ()
        step = ledger.decide(not missing or bool(rows))
        fresh = [ids[i] for i in missing], [hashes[i] for i in missing]
        if step == "compute":
            return self._computed(lambda value: self._populate(whole, call, missing, fresh, value))
        if step == "audit":
            return self._computed(lambda value: self._audit(whole, call, tensors, value))
        if rows:
            self._keep_rows(*fresh, rows)
        served = _Served(whole.output.build(tensors, call, whole.recording.inference))
        ledger.resume()
        ledger.skipped()
        self._failures = 0
        return served

    def _computed(self, act: _Computed) -> _Computed:
        self.gate.ledger.begin_compute()
        return act

    def _compute_beside(self, whole: WholeCall, call: Call) -> Sequence[Tensor]:
        """Computes another call than the one at hand, on a shadow."""
        if self._shadow is None or _addresses(self._shadow.model) != _addresses(self._network):
            self._shadow = shadow_of(self._network)
        return whole.compute(self._shadow, call)

    def _keep_rest(self, proofs: _Proofs, call: Call) -> None:
        """Keeps the samples of an epoch's last batch, which has fewer of them, as they are in a whole one: in the next
        epoch they are in others. Until inputs have come again that is done once."""
        if not self._recurrence.known and self._has_kept_rest or (whole := proofs.whole(call)) is None:
            return
        filled, proven = whole
        ids, hashes = keys_of(proven.keys(filled, Call.digests)[0])
        _, reasons = self.line.store.get(ids, hashes, self.gate.patience)
        if missing := [row for row, reason in enumerate(reasons[: call.batch]) if reason]:
            self._has_kept_rest = True
            rows = rows_of(self._compute_beside(proven.cut, filled), missing)
            self._keep_rows([ids[row] for row in missing], [hashes[row] for row in missing], rows)

    def _confirm(self, proven: Proven, call: Call, ids: list[int], hashes: list[int]) -> _Computed:
        """Compares what the network returns in this call with what a pass on the side computes."""
        whole: Any = proven.cut
        expected = proven.take_computed(call, lambda: whole.compute(shadow_of(self._network), call))

        def act(value: Any) -> None:
            tensors = whole.output.tensors_of(value, call)
            if not whole.output.looks_like(tensors) or not expected.is_in(tensors):
                raise Refused(
                    "OUTPUT_DIFFERS", "it computes something else than a copy of it on the side (is it compiled?)"
                )
            proven.confirmed = True
            self._keep_rows(ids, hashes, tensors)

        return self._computed(act)

    def _populate(
        self, whole: WholeCall, call: Call, missing: list[int], fresh: tuple[list[int], list[int]], value: Any
    ) -> None:
        """Keeps what the cache has not got."""
        self._keep_rows(*fresh, rows_of(whole.output.tensors_of(value, call), missing))
        self.gate.ledger.kept(self.line.store.seconds_behind)

    def _keep_rows(self, ids: list[int], hashes: list[int], rows: Sequence[Tensor]) -> None:
        self._recurrence.kept(len(ids), self.line.put(ids, hashes, rows))
        self._tell_whether_samples_repeat()

    def _audit(self, whole: WholeCall, call: Call, fetched: Sequence[Tensor], value: Any) -> None:
        """Compares what would have been served with what was computed."""
        kept = self.line.store.as_kept
        tensors = whole.output.tensors_of(value, call)
        if not _native.same_rows(kept(tensors), kept(fetched), range(call.batch)):
            self.line.store.forget()
            self._failures = _MAX_FAILURES
            raise Refused("STORE_DIFFERS", "the cache has other results than the network computes")

    def _refuse(self, error: Refused, settings: Any) -> None:
        self._tell(f"calls are computed: {error}")
        self.refusal = error
        if error.name not in ("NEEDS_GRADIENT", "WEIGHTS_CHANGED", "SETTING_CHANGED"):
            self._refused[settings] = error
            self._contents = None  # it may have been looked at while it was changing (statistics of a normalisation)
            if len(self._refused) > _MAX_SETTINGS:
                self._failures = _MAX_FAILURES

    def _fail(self, error: Exception, settings: Any) -> None:
        """Something of ours, or of the store, went wrong."""
        self.gate.ledger.failed(1)
        self._failures += 1
        _logger.debug("egeria: a cached call", exc_info=error)
        if self._failures >= _MAX_FAILURES:
            self._refuse(
                Refused("FAILED", f"{_MAX_FAILURES} times in a row: {type(error).__name__}: {error}"), settings
            )


def _addresses(network: nn.Module) -> list[int]:
    """Returns where the parameters lie, which a script may replace by others."""
    return [parameter.data_ptr() for parameter in network.parameters()]
