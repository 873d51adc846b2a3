"""Memory larger than RAM: numpy arrays and pools of pages in a memory limit.

What does not fit is in a swap area: a file, or compressed memory.

>>> import numpy as np, overspill
>>> with overspill.limit("8M", swap="ram:64M") as limit:
...     table = np.ones((8, 512, 512))
>>> float(table.sum())
2097152.0
>>> limit.stats()["pages_out"] > 0
True

A limit lives as long as its last array. Sizes are numbers of bytes, or words such as "512M"
or "25%", of the memory of this container or machine.
"""

from __future__ import annotations

import contextvars
import json
import os
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Union

from . import _native
from ._native import Error, Region, __version__

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "Error",
    "Pin",
    "Pool",
    "PoolPage",
    "Region",
    "__version__",
    "advise",
    "empty",
    "from_file",
    "full",
    "limit",
    "pin",
    "to_file",
    "zeros",
]

Size = Union[int, str]
Swap = Union[str, Sequence[str], None]

#: The limits whose blocks are open in this thread or task, each with numpy's handler from before.
_open: contextvars.ContextVar[tuple[tuple[limit, Any], ...]] = contextvars.ContextVar(
    "overspill_open", default=()
)


def _words_of(swap: Swap) -> list[str]:
    if swap is None:
        return []
    return [swap] if isinstance(swap, str) else list(swap)


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        raise Error("arrays need numpy: pip install numpy") from None
    return numpy


def _numpys_table() -> Any:
    numpy = _numpy()
    version = tuple(int(part) for part in numpy.__version__.split(".")[:2])
    if version < (1, 22):
        raise Error(f"numpy {numpy.__version__} takes no allocator: numpy 1.22 or newer is needed")
    core = numpy._core if version >= (2, 0) else numpy.core
    return core._multiarray_umath._ARRAY_API


_NEEDS_PINS = (
    'system calls on arrays in a limit fail with "Bad address" here, those of numpy.save, numpy.load, tofile and sockets too: '
    "use overspill.to_file, from_file and pin (`python -m overspill doctor` says what would help)"
)


class limit:
    """A memory limit, and places to swap to.

    memory: what all arrays and regions of this limit together may have in RAM, at least 4 MiB.
    swap: where the rest goes, in the words of ``overspill run --swap``: "file:/a/directory",
        "compressed:4G", "ram:4G", "/dev/sdb1", or a list of these, the first to be filled first. An
        unnamed file in $TMPDIR or /var/tmp if not given.
    page_size: a power of two from 4096, the default, to 2 MiB. Larger pages suit arrays used in large
        pieces.
    swap_size: the most that a swap file without a size of its own may grow to.

    In a block ``with limit:`` every array that numpy makes, of 64 KiB or more, is in the limit, also
    those made by libraries that use numpy, and stays there after the block. A block holds for its
    own thread or task; others open it too if they are to allocate in it.

    Processes made by fork do not have their parent's arrays: a touch ends them with a message.
    """

    def __init__(
        self,
        memory: Size,
        *,
        swap: Swap = None,
        page_size: Size | None = None,
        swap_size: Size | None = None,
    ) -> None:
        self._native = _native.Limit(memory, _words_of(swap), page_size, swap_size)
        if self.needs_pins:
            warnings.warn(_NEEDS_PINS, RuntimeWarning, stacklevel=2)

    def __enter__(self) -> limit:
        before = _native.set_handler(_numpys_table(), self._native, None)
        _open.set((*_open.get(), (self, before)))
        return self

    def __exit__(self, *_: object) -> None:
        *rest, (_, before) = _open.get()
        _open.set(tuple(rest))
        _native.set_handler(_numpys_table(), None, before)

    def __repr__(self) -> str:
        try:
            stats, swaps = self.stats(), ", ".join(swap["name"] for swap in self.swaps())
        except Error as why:
            return f"<overspill.limit: {why}>"
        memory, out = stats["memory_bytes"], stats["pages_out"]
        return f"<overspill.limit of {memory:_} bytes, {out:_} pages out, swap: {swaps}>"

    def region(self, size: Size) -> Region:
        """Zeroed memory, as an object with the buffer protocol: for programs without numpy."""
        return self._native.region(size)

    def stats(self) -> dict[str, Any]:
        """Everything counted so far; docs/stats.md has the names."""
        return json.loads(self._native.stats_json())

    @property
    def needs_pins(self) -> bool:
        """Whether system calls on arrays fail unless these are pinned.

        So it is where the kernel reports only touches by the program itself, which it does for every
        user. numpy.save, numpy.load and tofile then fail; `to_file`, `from_file` and `pin` work.
        """
        return self._native.needs_pins()

    @property
    def page_size(self) -> int:
        """Size of a page in bytes."""
        return self._native.page_size()

    @property
    def last_error(self) -> str | None:
        """The last error of a device, if there was one."""
        return self._native.last_error()

    def swapon(self, swap: str) -> None:
        """Adds a place to swap to."""
        self._native.swapon(swap)

    def swapoff(self, name: str) -> None:
        """Moves what is in a place elsewhere, and closes it. Blocks for that."""
        self._native.swapoff(name)

    def swaps(self) -> list[dict[str, Any]]:
        """The places in use, in the order in which they were added."""
        return self._native.swaps()


def _current(given: limit | None) -> limit:
    if given is not None:
        return given
    if not _open.get():
        raise Error('no limit is open: write `with overspill.limit("2G"):`, or pass limit=')
    return _open.get()[-1][0]


def empty(shape: Any, dtype: Any = float, *, order: str = "C", limit: limit | None = None) -> np.ndarray:
    """An array in limited memory, of the innermost open limit or the one given."""
    with _current(limit):
        return _numpy().empty(shape, dtype, order)


def zeros(shape: Any, dtype: Any = float, *, order: str = "C", limit: limit | None = None) -> np.ndarray:
    """As `empty`, of zeros; they cost nothing until they are written."""
    with _current(limit):
        return _numpy().zeros(shape, dtype, order)


def full(
    shape: Any, value: Any, dtype: Any = None, *, order: str = "C", limit: limit | None = None
) -> np.ndarray:
    """As `empty`, filled with a value."""
    with _current(limit):
        return _numpy().full(shape, value, dtype, order)


def from_file(
    path: str | os.PathLike[str],
    dtype: Any = None,
    shape: Any = None,
    *,
    offset: int = 0,
    limit: limit | None = None,
) -> np.ndarray:
    """The content of a file, copied into limited memory.

    A .npy file needs no dtype and no shape. Of any other file the bytes from `offset` on are taken
    as `dtype`, all of them if no shape is given. Changes do not go to the file.
    """
    numpy = _numpy()
    with _current(limit):
        with open(path, "rb") as file:
            if dtype is None:
                return numpy.lib.format.read_array(_Copied(file), allow_pickle=False)
            dtype = numpy.dtype(dtype)
            left = max(os.fstat(file.fileno()).st_size - offset, 0)
            array = numpy.empty(left // dtype.itemsize if shape is None else shape, dtype)
            if array.nbytes > left:
                raise Error(
                    f"{os.fspath(path)} has {left} bytes from {offset} on, and the array {array.nbytes}"
                )
            file.seek(offset)
            _fill(memoryview(array).cast("B") if array.nbytes else memoryview(b""), file)
            return array


def to_file(array: Any, path: str | os.PathLike[str]) -> None:
    """Writes an array to a .npy file, as numpy.save does, also where system calls on it need a pin."""
    with open(path, "wb") as file:
        _numpy().lib.format.write_array(_Copied(file), array, allow_pickle=False)


class _Copied:
    """A file to numpy that is none to the kernel: what is read and written is copied piece by piece."""

    def __init__(self, file: Any) -> None:
        self.read = file.read
        self.write = file.write


def _fill(view: memoryview, file: Any) -> None:
    """Reads until the view is full."""
    at = 0
    while at < len(view):
        piece = file.read(min(len(view) - at, 1 << 20))
        if not piece:
            raise Error(f"{file.name} ends after {at} of {len(view)} bytes: it became shorter")
        view[at : at + len(piece)] = piece
        at += len(piece)


def advise(array: Any, advice: str) -> None:
    """Says how memory will be used: an array, a contiguous part of one, or a region.

    advice: "normal", "sequential", "random", "willneed" (read it ahead), "cold" (evict it first),
        "pageout" (evict it now; blocks), "discard" (its whole pages are zeros from now on).
    """
    _native.advise(array, advice)


class Pin:
    """Keeps memory in RAM in a block: `with overspill.pin(array[:1000]): ...`"""

    def __init__(self, native: _native.Pin) -> None:
        self._native = native

    def __enter__(self) -> Pin:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Ends the pin; it may be called twice."""
        self._native.release()


def pin(array: Any) -> Pin:
    """Brings memory into RAM and keeps it there: a buffer for I/O, or what must not wait.

    At most half of the limit can be pinned.
    """
    return Pin(_native.pin(array))


class PoolPage:
    """A page in use; in a block it is a memoryview, and is given back at its end."""

    def __init__(self, native: _native.Page) -> None:
        self._native = native
        self._view: memoryview | None = None

    def __enter__(self) -> memoryview:
        self._view = memoryview(self._native)
        return self._view

    def __exit__(self, *_: object) -> None:
        if self._view is not None:
            self._view.release()
        self._native.release()


class Pool:
    """Numbered pages of which a limited number is in RAM, for programs that know their pages.

    A page is zeros until it is written. The arguments are those of `limit`.

    >>> pool = Pool("4M", swap="ram:16M")
    >>> with pool.write(7) as page:
    ...     page[:5] = b"hello"
    >>> with pool.read(7) as page:
    ...     bytes(page[:5])
    b'hello'
    """

    def __init__(
        self,
        memory: Size,
        *,
        swap: Swap = None,
        page_size: Size | None = None,
        swap_size: Size | None = None,
    ) -> None:
        self._native = _native.Pool(memory, _words_of(swap), page_size, swap_size)

    def __len__(self) -> int:
        return self._native.pages()

    def read(self, page: int) -> PoolPage:
        """Takes a page for reading, beside other readers. Blocks while it has a writer."""
        return PoolPage(self._native.take(page, False))

    def write(self, page: int) -> PoolPage:
        """Takes a page for reading and writing, alone. Blocks while it is in use, also by the caller."""
        return PoolPage(self._native.take(page, True))

    def prefetch(self, pages: Iterable[int]) -> int:
        """Starts reading pages and does not wait; returns how many are on their way or there."""
        return self._native.prefetch(list(pages))

    def discard(self, first: int, pages: int = 1) -> None:
        """Makes pages zeros again; they then cost nothing. Waits for their users."""
        self._native.discard(first, pages)

    @property
    def page_size(self) -> int:
        """Size of a page in bytes."""
        return self._native.page_size()

    def stats(self) -> dict[str, Any]:
        """Everything counted so far; faults are requests for absent pages."""
        return json.loads(self._native.stats_json())


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext overspill`: cells in a limit, by `%%overspill 2G`; see `overspill.jupyter`."""
    from . import jupyter

    jupyter.load(shell)


os.register_at_fork(after_in_child=_native.after_fork_in_child)
