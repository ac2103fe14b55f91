"""When each kernel began and ended on the device, by CUPTI's activity records."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KernelRecord = tuple[str, int, int]  # name, and nanoseconds of an absolute clock at its beginning and its end

_CONCURRENT_KERNEL = 10  # CUpti_ActivityKind
_SUCCESS = 0  # CUptiResult
_FLUSH_FORCED = 1
_BUFFER_BYTES, _ALIGNMENT = 8 << 20, 8


class _Kernel(ctypes.Structure):
    """What the records of all versions since CUPTI 5 begin with."""

    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("configuration", ctypes.c_uint8 * 12),
        ("start", ctypes.c_uint64),  # nanoseconds
        ("end", ctypes.c_uint64),
        ("completed", ctypes.c_uint64),
        ("place", ctypes.c_uint32 * 3),
        ("extents", ctypes.c_int32 * 6),
        ("memory", ctypes.c_uint32 * 4),
        ("correlation", ctypes.c_uint32),
        ("grid", ctypes.c_int64),
        ("name", ctypes.c_char_p),
    )


_Requested = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
_Completed = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)


class Recorder:
    """Records kernels between start and stop, of the whole process: there is one subscriber to CUPTI in each.

    Raises:
        OSError: there is no CUPTI.
        RuntimeError: CUPTI refuses, as it does under another profiler.
    """

    def __init__(self) -> None:
        self._cupti = _library()
        self._requested, self._completed = _Requested(self._give), _Completed(self._take)  # kept while CUPTI has them
        self._buffers: dict[int, Any] = {}
        self._records: list[KernelRecord] = []
        self._attached = False

    def start(self) -> None:
        """Forget what ran until now, and attach where not attached."""
        if not self._attached:
            self._call("cuptiActivityRegisterCallbacks", self._requested, self._completed)
            self._call("cuptiActivityEnable", _CONCURRENT_KERNEL)
            self._attached = True
        self._call("cuptiActivityFlushAll", _FLUSH_FORCED)
        self._records = []

    def stop(self) -> list[KernelRecord]:
        """What ran since start, in the order it began. Stays attached: attaching takes milliseconds."""
        self._call("cuptiActivityFlushAll", _FLUSH_FORCED)
        return sorted(self._records, key=lambda record: record[1])

    def detach(self) -> None:
        """Stop watching the process, so that later wall times are undisturbed."""
        if self._attached:
            self._call("cuptiFinalize")
            self._attached = False

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cupti, name)(*arguments)
        if code != _SUCCESS:
            raise RuntimeError(f"{name} returned {code}")

    def _give(self, buffer: Any, size: Any, most: Any) -> None:
        memory = ctypes.create_string_buffer(_BUFFER_BYTES + _ALIGNMENT)
        address = -(-ctypes.addressof(memory) // _ALIGNMENT) * _ALIGNMENT
        self._buffers[address] = memory
        buffer[0], size[0], most[0] = address, _BUFFER_BYTES, 0  # no limit to the number of records

    def _take(self, _context: Any, _stream: int, buffer: int, _size: int, valid: int) -> None:
        self._records += self._kernels(buffer, valid)
        del self._buffers[buffer]

    def _kernels(self, buffer: int, valid: int) -> Iterator[KernelRecord]:
        record = ctypes.c_void_p(None)
        following = self._cupti.cuptiActivityGetNextRecord
        while following(ctypes.c_void_p(buffer), ctypes.c_size_t(valid), ctypes.byref(record)) == _SUCCESS:
            kernel = ctypes.cast(record, ctypes.POINTER(_Kernel)).contents
            if kernel.kind == _CONCURRENT_KERNEL:
                yield (kernel.name or b"").decode(), kernel.start, kernel.end


def _library() -> ctypes.CDLL:
    """CUPTI: what JAX's CUDA plugin has loaded, or where NVIDIA's packages have it."""
    try:
        return ctypes.CDLL("libcupti.so.13")
    except OSError:
        spec = importlib.util.find_spec("nvidia")
        for folder in spec.submodule_search_locations or () if spec else ():
            for file in sorted(Path(folder).glob("*/lib/libcupti.so.*")):
                return ctypes.CDLL(str(file))
        raise
