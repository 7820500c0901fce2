"""egeria.doctor(model, ...) and the command `egeria doctor model.py:build` report what Egeria would make of a model."""

import sys
import types
from typing import Any

from egeria.doctor.examination import examine
from egeria.doctor.report import Report

__all__ = ["Report", "examine"]


class _CallableModule(types.ModuleType):
    """Lets egeria.doctor(model) stand for egeria.doctor.examine(model)."""

    def __call__(self, *args: Any, **kwargs: Any) -> Report:
        return examine(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
