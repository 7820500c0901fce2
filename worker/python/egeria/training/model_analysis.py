"""The analysis of a model before it is linked: the order of its layer modules, and their graphs."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import logging
from collections.abc import Sequence
from typing import Any

from torch import nn

from egeria import _native
from egeria.errors import EgeriaError
from egeria.freeze.replicas import is_sharded
from egeria.model.inputs import GraphError, RootInputs
from egeria.model.modules import LayerModule, has_parameters, partition
from egeria.model.parameter_uses import place
from egeria.model.shadow import NoShadow
from egeria.reference.graph import ExportedModel, export_model
from egeria.reference.probing import record_pass
from egeria.training.link_target import LinkTarget

_READS_NOTHING = "the policy reads no plasticity"

_logger = logging.getLogger("egeria")


@dataclasses.dataclass
class Analysis:
    """The facts about a model that forward passes have shown: one of training, and a shadow's in evaluation mode.

    Attributes:
      modules: the layer modules, in the order in which training calls them.
      calls: the modules that the shadow called, in order; None: there was no such pass, or it raised.
      exported: the model's graph; None: there is none.
      errors: why a layer module has no graph, by layer module; None where it has one.
    """

    modules: list[LayerModule]
    calls: list[nn.Module] | None
    exported: ExportedModel | None
    errors: list[str | None]

    def fingerprint(self, index: int) -> str:
        """A fingerprint of a layer module's graph, to compare it with other ranks'."""
        text = self.exported.module(index).graph_json if self.exported is not None else None
        return hashlib.sha256((text or "").encode()).hexdigest()


def analyse(target: LinkTarget, inputs: RootInputs, samples: int, dynamic: Sequence[tuple[int, int]]) -> Analysis:
    inputs = inputs.narrowed(samples)
    evaluated = None
    modules, model, calls, uses = target.modules, target.trained.model, target.calls, target.uses
    reason = target.no_shadow if target.config.reads_plasticity() else _READS_NOTHING
    if samples < 2 and target.config.reads_plasticity():
        reason = "a batch has one sample, and a reading of plasticity compares at least two"
    if reason is None or calls is None:
        try:
            evaluated, shown = record_pass(model, inputs, modules if calls is None else ())
            calls, uses = (evaluated, shown) if calls is None else (calls, uses)
        except NoShadow as error:
            reason = str(error)
        except Exception as error:  # pylint: disable=broad-exception-caught  # whatever a model's code raises
            _logger.debug("egeria: the model does not run in evaluation mode", exc_info=True)
            reason = f"in evaluation mode the model raises {type(error).__name__}: {str(error)[:200]}"
    if calls is None:
        return Analysis(modules, None, None, [reason] * len(modules))
    if target.trained.fixed:
        _check_order(modules, calls)
    else:
        modules = partition(model, target.trained.spec, calls, target.trained.parameters)
    able = reason is None
    if able and target.config.reference == "local":
        reason = "reference is 'local'"
    elif able and is_sharded(model):
        reason = "its parameters are sharded"
    exported = None
    if reason is None:
        try:
            exported = export_model(model, modules, inputs, dynamic)
        except (GraphError, NoShadow) as error:
            reason = str(error)
    if exported is None:
        return Analysis(place(modules, uses), evaluated, None, [reason] * len(modules))
    modules = place(exported.modules, uses)
    errors = []
    for index in range(len(modules)):
        module = exported.module(index)
        errors.append(module.error or _native.check_graph(module.graph_json))
    return Analysis(modules, evaluated, exported, errors)


def analyse_unseen(target: LinkTarget) -> Analysis:
    """The analysis of a model that trains, but that nobody calls as a whole: it runs in a compiled function, or its
    parts are called, whose order is known then.

    Raises:
      EgeriaError: [NO_PASSES] its passes are needed: for readings, or as the order of the layer modules is not known.
    """
    seen_nowhere = "the model's forward pass is not seen: it runs in a compiled function, or its parts are called alone"
    modules, calls, model = target.modules, target.calls, target.trained.model
    if target.config.reads_plasticity():
        raise EgeriaError(
            "NO_PASSES",
            f"{seen_nowhere}; the policy '{target.config.policy}' needs it: call the model itself, and compile that",
        )
    if calls is not None and target.trained.fixed:
        _check_order(modules, calls)
    elif calls is not None:
        modules = partition(model, target.trained.spec, calls, target.trained.parameters)
    elif not target.trained.fixed and type(model).forward is not nn.Sequential.forward:
        raise EgeriaError(
            "NO_PASSES",
            f"{seen_nowhere}; give attach() `modules` in forward order, or call the model itself, and compile that",
        )
    return Analysis(place(modules, target.uses), None, None, [_READS_NOTHING] * len(modules))


def _check_order(modules: Sequence[LayerModule], calls: Sequence[nn.Module]) -> None:
    """Raises EgeriaError [BAD_PARTITION] unless the layers of each layer module are called before those of the next."""
    position: dict[int, int] = {}
    for index, call in enumerate(calls):
        position.setdefault(id(call), index)
    before, last = "", -1
    seen: set[nn.Module] = set()  # a module that has several names may be in several layer modules
    for module in modules:
        units = [unit for unit in module.units if has_parameters(unit)]
        inner = [[inner for inner in unit.modules() if inner not in seen] for unit in units]
        begins = {
            unit: min(found)
            for unit, entry in zip(units, inner)
            if (found := [position[id(called)] for called in entry if id(called) in position])
        }
        starts = _where_it_counts(begins, last)
        if module is modules[-1]:  # it never freezes, so that what else is in it may run earlier
            starts = starts and [max(starts)]
        seen.update(*inner)
        if starts and min(starts) < last:
            raise EgeriaError(
                "BAD_PARTITION",
                f"a layer of '{module.name}' runs before one of '{before}'; list "
                "`modules` in forward order, each with consecutive layers",
            )
        if starts:
            before, last = module.name, max(starts)


def _where_it_counts(begins: dict[nn.Module, int], last: int) -> list[int]:
    """The beginnings of the units of a layer module by which its order is judged. Units that share a weight may be
    together in it, wherever they are called: others count; without others, the first one that fits."""
    users = collections.Counter(id(parameter) for unit in begins for parameter in unit.parameters())
    tied = {unit for unit in begins if any(users[id(parameter)] > 1 for parameter in unit.parameters())}
    others = [begin for unit, begin in begins.items() if unit not in tied]
    return others or [begin for begin in sorted(begins.values()) if begin > last][:1] or list(begins.values())


def varying(views: Sequence[Sequence[dict[str, Any]]]) -> list[tuple[int, int]]:
    """(tensor, dimension) of the sizes, other than the batch, that differ between steps or ranks."""
    all_views = [view for rank in views for view in rank]
    shapes = [view["shapes"] for view in all_views]
    if len({tuple(len(shape) for shape in other) for other in shapes}) > 1:
        return []  # called in several ways; those that are unlike the recorded one are passed over
    return [
        (tensor, dimension)
        for tensor, shape in enumerate(shapes[0])
        for dimension in range(len(shape))
        if len({other[tensor][dimension] for other in shapes}) > 1
        and not (dimension == 0 and all(view["batched"][tensor] for view in all_views))
    ]
