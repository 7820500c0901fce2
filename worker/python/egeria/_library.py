"""Refuses a torch that the compiled part does not fit, then loads it."""

from __future__ import annotations

from egeria._version import BUILT_FOR_TORCH, __version__


def _check_torch() -> None:
    """Raises ImportError, saying what to do, unless the installed torch is of the minor version built against."""
    remedy = (
        f"install one that fits with `pip install 'torch=={BUILT_FOR_TORCH}.*'`, or use an egeria that was built "
        "for yours"
    )
    try:
        import torch  # pylint: disable=import-outside-toplevel
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(f"egeria {__version__} needs torch, which is not installed: {remedy}") from None
    found = ".".join(torch.__version__.split("+")[0].split(".")[:2])
    if found != BUILT_FOR_TORCH:
        raise ImportError(
            f"egeria {__version__} was built for torch {BUILT_FOR_TORCH}, but torch {torch.__version__} "
            f"is installed: {remedy}"
        )


_check_torch()

from egeria import _native  # noqa: E402  pylint: disable=wrong-import-position

__all__ = ["__version__", "_native"]
