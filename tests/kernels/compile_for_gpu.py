"""Compile the kernels of batch operations for an H200, on any machine; nothing is launched.

``python -m tests.kernels.compile_for_gpu NAME...``, without ``TRITON_INTERPRET``, prints a line of JSON for
each name: how many forms of kernels it takes, and what the compiler refused. A form that several names
take is compiled once. ``NAME`` takes one dtype, ``NAME:all`` all that it has. The interpreter runs what a
compiler refuses: a name that changes its type in a branch, for one.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
import traceback
from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import tersor.kernels
from tersor.codecs import Codec, registry
from tersor.kernels.batch.encoded_list import EncodedList
from tersor.kernels.batch.gpu import ans
from tersor.kernels.batch.gpu.replay import absolute_places
from tersor.kernels.batch.gpu.result_copies import ResultCopies
from tersor.kernels.payload.gpu.frame import places_of_frame
from tersor.kernels.runtime.gpu.launch import Kernel, jit_kernel
from tersor.kernels.runtime.op import use_backend
from tersor.types import Bound

H200 = GPUTarget("cuda", 90, 32)
TYPES = {
    torch.float32: "fp32", torch.float64: "fp64", torch.float16: "fp16", torch.bfloat16: "bf16",
    torch.bool: "i1", torch.int8: "i8", torch.uint8: "u8", torch.int16: "i16", torch.int32: "i32",
    torch.int64: "i64", torch.uint32: "u32", torch.uint64: "u64",
}  # fmt: skip
compiled: set[tuple[Any, ...]] = set()
taken: set[tuple[Any, ...]] = set()
"""Forms of kernels: those that are compiled, and those that the current name takes."""


def signature_of(argument: Any) -> Any:
    if argument is None:
        return "constexpr"
    if isinstance(argument, torch.Tensor):
        return f"*{TYPES[argument.dtype]}"
    if isinstance(argument, tuple):
        return tuple(signature_of(one) for one in argument)
    return "i32" if -(2**31) <= argument < 2**31 else "i64"


def compile_only(kernel: Kernel, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Take the place of ``Kernel._launch``."""
    del grid
    function, names = kernel._jit, kernel._jit.arg_names
    signature = dict(zip(names, map(signature_of, arguments), strict=False))
    signature |= dict.fromkeys(kernel.wide_parameters, "i64")
    constants = {name: None for name, kind in signature.items() if kind == "constexpr"}
    constants |= {name: options.pop(name) for name in kernel._constants}
    signature |= dict.fromkeys(kernel._constants, "constexpr")
    chosen = {name: value for name, value in options.items() if value is not None}
    chosen["enable_fp_fusion"] = False
    form = (function, *map(str, (signature, constants, chosen)))
    taken.add(form)
    if form not in compiled:
        triton.compile(ASTSource(function, signature, constants), target=H200, options=chosen)
        compiled.add(form)


@jit_kernel()
def faulty(x, size: tl.constexpr):
    found = tl.load(x)
    if found > size:
        found = tl.arange(0, size)
        tl.store(x + found, found.to(tl.float32))


BOUND = Bound.relative(0.01)
LARGE = (512, 512)
CODECS: dict[str, Codec] = {
    "flat": registry.create("flat", bound=BOUND),
    "delta": registry.create("delta", bound=BOUND),
    "delta-2d": registry.create("delta", bound=BOUND, lorenzo=2, block=64),
    "delta-3d": registry.create("delta", bound=BOUND, lorenzo=3),
    "ans": registry.create("ans", bound=BOUND),
    "ans-wide": registry.create("ans", bound=Bound.relative(0.001)),
    "ans-1d": registry.create("ans", bound=BOUND, lorenzo=1),
    "ans-3d": registry.create("ans", bound=BOUND, lorenzo=3, frequencies=(16,) * 256),
    "ans-static": registry.create("ans", bound=BOUND, frequencies=(16,) * 256),
    "rows": registry.create("rows", bound=BOUND, entropy="ans"),
    "group4": registry.create("group4"),
    "fp8": registry.create("fp8"),
    "rms": registry.create("rms"),
    "mask4": registry.create("mask4"),
    "mask2": registry.create("mask2"),
    "group2": registry.create("group2"),
    "group2-seed": registry.create("group2", group=5000, seed=1),
}


def dtypes_of(name: str) -> Sequence[torch.dtype]:
    """Return the dtypes that a codec is compiled for; the first is another one for each of its neighbours."""
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)
    if CODECS[name].codec_id == "delta":
        dtypes = (torch.float64, torch.float16)
    if CODECS[name].codec_id in ("mask2", "mask4", "group2"):
        # each has branches of its own
        dtypes = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    return dtypes if list(CODECS).index(name) % 2 else dtypes[::-1]


def compile_codec(codec: Codec, dtypes: Sequence[torch.dtype]) -> None:
    """Encode and decode a short list, one that is not, and a large tensor, alone and with a small one."""
    for dtype in dtypes:
        for shapes in (((64, 64),) * 2, ((3, 64, 128),) * 2, (LARGE,), (LARGE, (64, 64))):
            xs = [torch.zeros(shape, dtype=dtype) for shape in shapes]
            codec.encode(xs).written()
            # only the device knows the sizes
            numbers = torch.zeros(len(xs), dtype=torch.int64)
            memory = torch.zeros(4096, dtype=torch.uint8)
            codec.decode(EncodedList(numbers, memory, offsets=numbers), xs)
            if codec.size_kind == "fixed":
                # a single tensor has kernels of its own where the host knows the size
                sizes = (codec.max_nbytes(tuple(x.shape), dtype) for x in xs)
                payloads = [torch.zeros(size, dtype=torch.uint8) for size in sizes]
                codec.decode(EncodedList.apart(payloads), xs)


def compile_replay() -> None:
    """Copy the result of a replay, and find payloads of which only the device knows where they are."""
    sizes, table = torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
    memory = torch.zeros(80, dtype=torch.uint8)
    for known in (sizes, None):
        ResultCopies([sizes, memory], known).copies()
    places_of_frame(table, (1, 2, 3))
    absolute_places(table, 3)


def compile_large(codec: Codec, dtypes: Sequence[torch.dtype]) -> None:
    """Encode lists as if they were large ones, of which nothing but the payloads is held in memory."""
    with mock.patch.object(ans, "MOST_HELD_NBYTES", 0):
        for dtype in dtypes:
            for shapes in ((LARGE,), (LARGE, (64, 64))):
                codec.encode([torch.zeros(shape, dtype=dtype) for shape in shapes]).written()


def compile_ptx() -> None:
    """Let kernels contain PTX, as on a GPU."""
    for found in pkgutil.walk_packages(tersor.kernels.__path__, "tersor.kernels."):
        if ".gpu" in found.name:
            module = importlib.import_module(found.name)
            if hasattr(module, "has_ptx"):
                module.has_ptx = lambda x: True


def compile_name(name: str) -> None:
    """Compile what one name stands for."""
    if name == "faulty":
        faulty[(1,)](torch.zeros(4), size=4)
    elif name == "replay":
        compile_replay()
    else:
        name, _, how_many = name.partition(":")
        codec, dtypes = CODECS[name], dtypes_of(name)[: None if how_many else 1]
        compile_codec(codec, dtypes)
        if codec.codec_id == "ans":
            compile_large(codec, dtypes)


def main(names: Sequence[str]) -> None:
    """Compile all names, whatever is refused."""
    Kernel._launch = compile_only
    compile_ptx()
    for name in names:
        taken.clear()
        refused = ""
        try:
            with use_backend("gpu"):
                compile_name(name)
        except Exception:  # noqa: BLE001 (whatever it is, it is what the test wants to know)
            refused = traceback.format_exc()
        print(json.dumps({"name": name, "num_forms": len(taken), "refused": refused}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
