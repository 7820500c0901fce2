"""The end of a script of several ranks."""

import contextlib

import torch.distributed as dist


def end_process_group() -> None:
    """Takes the process group apart once its threads rest: see wait_for_collectives(). On a busy machine a plain script
    whose model keeps the group would abort now and then."""
    with contextlib.suppress(ImportError):  # late: plain scripts train without the package
        from egeria.training.process_exit import wait_for_collectives

        assert wait_for_collectives(patience=300)
    dist.destroy_process_group()
