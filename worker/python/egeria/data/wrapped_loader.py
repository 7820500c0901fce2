"""A wrapped loader announces which samples each of its batches is made of."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections import UserDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, IterableDataset, MapDataPipe

from egeria.data.lookahead import LookAhead
from egeria.data.sample_ids import Pass, current, ids_of
from egeria.data.sample_memory import SampleMemory
from egeria.data.skip_loading import in_worker_of
from egeria.data.tagging import KEY, Indices, TaggedBatch, iterates_itself, order_of, sampler_of, tag, with_indices
from egeria.data.variants import Variants, VariantSampler
from egeria.errors import EgeriaError

SampleId = Callable[[Any], int]
_STATE = "_egeria_identity"  # attribute of a wrapped loader


class _Options(NamedTuple):
    """Holds what wrap() was told."""

    sample_id: SampleId | None = None
    variants: int | None = None
    variant_seed: int = 0
    skip_loading: bool = False
    version: Any = None

    def of(self, loader: DataLoader) -> tuple[Variants | None, VariantSampler | None]:
        """Returns the variants of the loader's samples, and what draws them; None where none are wanted."""
        if self.variants is None:
            return None, None
        images = Variants(loader.dataset, self.variants, self.variant_seed)
        return images, images.one_each(sampler_of(loader))

    def memory_of(self, loader: DataLoader, variants: Variants | None) -> SampleMemory | None:
        """Returns what is to know the loader's samples; None where all are loaded.

        Raises:
          EgeriaError: [NO_SKIP_LOADING].
        """
        if not self.skip_loading:
            return None
        if loader.batch_sampler is None or not hasattr(loader.dataset, "__len__"):
            raise EgeriaError(
                "NO_SKIP_LOADING",
                "the loader makes no batches (batch_size=None), or its dataset has no length; give them, or leave "
                "skip_loading out",
            )
        dataset = loader.dataset if variants is None else variants
        return SampleMemory(dataset, loader.collate_fn, in_worker_of(loader), self.version)


def wrap(
    loader: DataLoader,
    *,
    sample_id: SampleId | None = None,
    variants: int | None = None,
    variant_seed: int = 0,
    skip_loading: bool = False,
    version: Any = None,
) -> DataLoader:
    """Returns a loader that announces to current() of which samples each batch is, and is `loader` otherwise.

    Batches, their types and order and every random number are those of `loader`, which stays as it is; both share
    their sampler and generator. One that accelerate has prepared is wrapped after accelerator.prepare(), and anew
    after skip_first_batches(). A loader for validation is not wrapped.

    A batch has ids if its collate_fn keeps the order of its samples (one that sorts its list in place, or
    leaves samples out, is noticed; one that makes a sorted list is not, and its ids are those of other samples of
    the batch), and if the loop calls the model with a batch before it takes the next one: a loop that prefetches
    calls SampleIds.announce() itself.

    Args:
      loader: over a dataset with __getitem__.
      sample_id: turns the index of a sample into its id, a number of 64 bits that is the same in each epoch; for
        indices that are no integers, or several datasets in one training. Called in the process that trains. None:
        the index is the id.
      variants: so many fixed variants of each sample stand for its random augmentation, one of them in each epoch
        (Variants); None: samples are what the dataset gives. The loader's own dataset, sampler and length are as
        they were, and the sampler's set_epoch() says which epoch it is.
      variant_seed: what the variants are drawn from.
      skip_loading: samples whose frozen layers the cache answers for are not loaded, on the caller's word that an index
        names the same sample for ever (SampleMemory). Large tensors of such batches are StandIns.
      version: the data's, for skip_loading: plain values, or a function that returns them, which is called when a pass
        begins, and for each batch where there are no workers. With another one all samples are loaded once more.

    Raises:
      EgeriaError: [NO_SAMPLE_IDS] batches cannot be told from this loader. [BAD_VARIANTS] its samples have no variants;
        a pass over the loader raises this too, where the sampler draws what is no integer. [NO_SKIP_LOADING] the
        loader makes no batches, or its dataset has no length.
    """
    options = _Options(sample_id, variants, variant_seed, skip_loading, version)
    if _is_wrapped(loader):
        given = type(loader)._egeria_options
        if _STATE in loader.__dict__ and options in (_Options(), given):
            return loader
        # Other options; or a framework has made another loader of this one's class and attributes.
        if variants is None:
            options = options._replace(variants=given.variants, variant_seed=given.variant_seed)
        options = options._replace(
            sample_id=sample_id or given.sample_id,
            skip_loading=skip_loading or given.skip_loading,
            version=given.version if version is None else version,
        )
        loader = _plain_copy(loader)
    _check(loader)
    identity = _Identity(options, loader)
    current().feed()
    if _is_accelerates(loader, "DataLoaderShard"):
        base = _made_of(loader.base_dataloader, _Tagging, identity)
        return _made_of(loader, _Delivering, identity, base_dataloader=base)
    kind = _TaggingAndDelivering if options.variants is None else _DeliveringVariants
    return _made_of(loader, kind, identity, _iterator=None)


class Marks:
    """Lets a loader that accelerate has prepared, and that nobody has iterated over, put the indices of its
    samples into each batch that is a dict, in place: for a training framework that makes loaders of this one, and
    takes batches ahead of the model. Until remove(), every batch must go through announcing(), and with skip_loading
    through completing() before that.

    Args:
      variants, skip_loading, version: see wrap().

    Raises:
      EgeriaError: [NO_SAMPLE_IDS] batches cannot be told from this loader. [BAD_VARIANTS] its samples have no variants.
        [NO_SKIP_LOADING] see wrap().
    """

    def __init__(
        self, loader: DataLoader, variants: int | None = None, skip_loading: bool = False, version: Any = None
    ):
        _check(loader)
        current().feed()
        self._loader = loader.base_dataloader if _is_accelerates(loader, "DataLoaderShard") else loader
        if self._loader.batch_sampler is None or self._loader._iterator is not None:
            raise EgeriaError(
                "NO_SAMPLE_IDS",
                "the loader collates no batches (batch_size=None), or its workers "
                "run already; give it a batch size, and let each training make a loader of its own",
            )
        options = _Options(variants=variants, skip_loading=skip_loading, version=version)
        images, chosen = options.of(self._loader)
        self.memory = options.memory_of(self._loader, images)
        self._order = order_of(self._loader, ids_of, chosen, self.memory)
        self._replaced = tag(self._loader, self._order, in_dict=True, variants=images, skips=_skips(self.memory))

    def completing(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Gives the loader's batches as the framework is to see them, in the process that trains."""
        return map(self._completed, batches)

    def _completed(self, batch: Any) -> Any:
        if not isinstance(batch, TaggedBatch):
            return batch
        return with_indices(batch.indices, _completed(batch, self.memory), batch.drew)

    @contextlib.contextmanager
    def announcing(self, batch: Any) -> Iterator[None]:
        """Takes the indices out of a batch, and announces its ids to current() while the block runs."""
        indices = batch.pop(KEY, None) if isinstance(batch, (dict, UserDict)) else None
        ids_at_hand = current()
        ids_at_hand.forget()
        if isinstance(indices, Indices):
            self._order.delivered(indices.indices)
            ids = ids_of(indices.indices)
            ids_at_hand.note_drawing(indices.drew)
            if ids is not None:
                ids_at_hand.announce(ids)
        ids_at_hand.follow(self._order)
        try:
            yield
        finally:
            ids_at_hand.forget()

    def remove(self) -> None:
        """Leaves the loader as it was. Nobody may be iterating over it."""
        self._loader.__dict__.update(self._replaced)


class _Identity:
    """Holds what a wrapped loader has besides the attributes of the loader that it was made of.

    Attributes:
      inner: the loader that the batches come from; None before the first pass.
      order: that loader's.
      memory: of the loader's samples, where some need not be loaded.
    """

    def __init__(self, options: _Options, loader: DataLoader):
        self.options = options
        self._variants, self._chosen = options.of(loader)
        self.memory = options.memory_of(loader, self._variants)
        sample_id = options.sample_id
        # Nothing here refers to this object: loaders with workers must end with their last reference.
        self.ids_of = functools.partial(
            ids_of, sample_id=sample_id if self._variants is None else self._variants.id_of(sample_id)
        )
        self.inner: DataLoader | None = None
        self.order: LookAhead | None = None

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch the next pass is, also to the loader's sampler, where it wants to know."""
        if self._chosen is not None:
            self._chosen.set_epoch(epoch)

    def begin(self, loader: DataLoader) -> None:
        """A pass over `loader` begins; one that accelerate has prepared counts them."""
        if self._chosen is not None:
            self._chosen.loader_epoch = loader.__dict__.get("iteration")

    def tag_copy(self, loader: DataLoader) -> None:
        """Makes a tagged copy of `loader`, as it is now, the inner one."""
        self.inner = _plain_copy(loader)
        if self._chosen is not None:
            self._chosen.sampler = sampler_of(self.inner)  # frameworks put others in
        self.order = order_of(self.inner, self.ids_of, self._chosen, self.memory)
        tag(self.inner, self.order, in_dict=False, variants=self._variants, skips=_skips(self.memory))


def _skips(memory: SampleMemory | None) -> bool | str:
    """Returns what tag() is to know of samples that are left out."""
    return memory is not None and ("whole" if memory.whole else True)


def _completed(tagged: TaggedBatch, memory: SampleMemory | None) -> Any:
    """Returns the batch that the loop gets."""
    batch = tagged.batch
    if memory is not None and tagged.part is not None and tagged.indices is not None:
        batch = memory.deliver(tagged.indices, batch, tagged.part)
    return batch if tagged.move is None else tagged.move(batch)


class _Deliveries(Pass):
    """Iterates over tagged batches, announces them and gives them without their tags."""

    def __init__(self, iterator: Iterator[Any], identity: _Identity):
        self._iterator = iterator
        self._identity = identity

    def __iter__(self) -> _Deliveries:
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._iterator)
        except StopIteration:
            current().end(self)
            raise
        if not isinstance(batch, TaggedBatch):
            current().deliver(self, None)
            return batch
        order = self._identity.order
        if order is not None:
            order.delivered(batch.indices)
            current().follow(order)
        current().note_drawing(batch.drew)
        current().deliver(self, self._identity.ids_of(batch.indices))
        return _completed(batch, self._identity.memory)

    def __len__(self) -> int:
        return len(self._iterator)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_iterator":
            raise AttributeError(name)
        return getattr(self._iterator, name)


class _Wrapping:
    """Comes before the class of a loader. All attributes stay the loader's, so that whoever makes another loader of
    them gets one that is not wrapped; a pickle is wrapped anew."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        identity = self.__dict__.get(_STATE)
        if identity is None:
            return super().__reduce_ex__(protocol)
        return _wrap_anew, (_plain_copy(self), identity.options)


class _Tagging(_Wrapping):
    """Tags a loader's batches."""

    def __iter__(self) -> Iterator[Any]:
        identity = _identity_of(self)
        if identity is None:
            return super().__iter__()  # type: ignore[misc]
        if not self.persistent_workers or self.num_workers == 0:
            identity.tag_copy(self)
            return iter(identity.inner)
        if self._iterator is None or identity.inner is None:  # training frameworks set it to None
            identity.tag_copy(self)
        iterator = iter(identity.inner)
        self._iterator = identity.inner._iterator
        return iterator


class _Delivering(_Wrapping):
    """Announces the batches of a loader that are tagged already. So are those of a loader that accelerate has prepared:
    it takes each batch one ahead from a loader inside it, which is tagged, and moves it to the device."""

    def __iter__(self) -> Iterator[Any]:
        identity = _identity_of(self)
        if identity is None:
            return super().__iter__()  # type: ignore[misc]
        identity.begin(self)
        return _Deliveries(super().__iter__(), identity)  # type: ignore[misc]


class _TaggingAndDelivering(_Delivering, _Tagging):
    """Tags a loader's batches, and announces them."""


class _DeliveringVariants(_TaggingAndDelivering):
    """Tags and announces batches of variants."""

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch the next pass is, also to the loader's sampler, where it wants to know."""
        if (identity := _identity_of(self)) is not None:
            identity.set_epoch(epoch)


def _identity_of(loader: Any) -> _Identity | None:
    """Returns what wrap() has given a loader; None where somebody has made another one of its class. Such a one
    gives variants all the same: the training would be another one without."""
    identity = loader.__dict__.get(_STATE)
    options = type(loader)._egeria_options
    if identity is None and options.variants is not None:
        identity = loader.__dict__[_STATE] = _Identity(options, loader)
    return identity


def _wrap_anew(loader: DataLoader, options: _Options) -> DataLoader:
    return wrap(loader, **options._asdict())


def _is_wrapped(loader: Any) -> bool:
    return issubclass(type(loader), _Wrapping)


def _made_of(loader: Any, wrapper: type, identity: _Identity, **attributes: Any) -> Any:
    """Returns a loader like `loader`, with `wrapper` before its class and other attributes where they are given."""
    kind = type(loader)
    made = object.__new__(
        type(
            kind.__name__,
            (wrapper, kind),
            {"__module__": kind.__module__, "__doc__": kind.__doc__, "_egeria_options": identity.options},
        )
    )
    made.__dict__.update(loader.__dict__, **attributes)
    made.__dict__[_STATE] = identity
    return made


def _plain_copy(loader: Any) -> Any:
    """Returns a loader with the attributes of `loader`, wrapped or not, that has not been iterated over."""
    kind = type(loader).__bases__[1] if _is_wrapped(loader) else type(loader)
    copy = object.__new__(kind)
    copy.__dict__.update(loader.__dict__)
    copy.__dict__.pop(_STATE, None)
    if "_iterator" in copy.__dict__:
        copy.__dict__["_iterator"] = None
    if "base_dataloader" in copy.__dict__:
        copy.__dict__["base_dataloader"] = _plain_copy(copy.__dict__["base_dataloader"])
    return copy


def _is_accelerates(loader: Any, kind: str) -> bool:
    module = sys.modules.get("accelerate.data_loader")
    return module is not None and issubclass(type(loader), getattr(module, kind))


def _check(loader: Any) -> None:
    """Raises EgeriaError for a loader whose batches cannot be told."""
    announce = "call egeria.data.current().announce(ids) for each batch in the training loop"
    dispatched = _is_accelerates(loader, "DataLoaderDispatcher")
    if dispatched or _is_accelerates(loader, "DataLoaderShard"):
        loader = loader.base_dataloader
    kind = type(loader).__name__
    if not issubclass(type(loader), DataLoader):
        why = f"wrap() takes a torch.utils.data.DataLoader, not a {kind}; {announce}"
    elif isinstance(loader.dataset, (IterableDataset, MapDataPipe)):
        why = (
            f"the samples of the {type(loader.dataset).__name__}, an iterable dataset, have no indices; use a dataset "
            f"with __getitem__ and __len__, or {announce}"
        )
    elif dispatched:
        why = (
            "with dispatch_batches=True one process loads the batches of all and cuts them up; leave it out, so that "
            "each process loads its own"
        )
    elif not iterates_itself(loader):
        why = f"the loader is a {kind} with an iteration of its own; use a torch.utils.data.DataLoader, or {announce}"
    else:
        return
    raise EgeriaError("NO_SAMPLE_IDS", why)
