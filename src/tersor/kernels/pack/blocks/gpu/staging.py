"""Shared memory through which the lanes of one warp exchange the numbers of a tile, in PTX.

A lane packs 32 neighbours, so its words lie behind each other, and one store by all lanes touches 32 sectors of memory.
ncu showed writing limited by these: the L2 cache at 87 % of its limit, memory at 46 %. Through shared memory,
neighbouring threads store neighbouring words, 4 sectors per store. Triton offers no stores to computed places there.

Only kernels with one warp per program may use this, and only where ``IS_STAGED``.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from tersor.kernels.quantize.grid import TILE as _TILE_VALUES

IS_STAGED = tl.constexpr(not triton.knobs.runtime.interpret and torch.version.hip is None)
"""Whether kernels are compiled via NVIDIA's PTX. The interpreter, and other GPUs, exchange numbers through memory."""

_BANKS: Final = 32
_OPEN = tl.constexpr(
    "{ .shared .align 16 .b32 staged[NUM]; mov.u32 $0, staged; }".replace(
        "NUM", str(_TILE_VALUES + _TILE_VALUES // _BANKS)
    )
)
_STORE = tl.constexpr(
    "{ .reg .pred p; setp.ne.s32 p, $3, 0; @p st.shared.u32 [$1], $2; mov.u32 $0, 0; }"
)
_LOAD = tl.constexpr("ld.shared.u32 $0, [$1];")


@triton.jit
def open_staging():
    """Return the address of shared memory for 1024 numbers of 32 bits."""
    return tl.inline_asm_elementwise(_OPEN, "=r", [], dtype=tl.uint32, is_pure=False, pack=1)


@triton.jit
def _address(staging, index):
    """Return where number ``index`` is: after 32 numbers one is left out, so that steps of 32 use all 32 banks."""
    return staging + 4 * (index + (index >> 5)).to(tl.uint32)


@triton.jit
def stage(staging, index, numbers, mask):
    """Store 32-bit numbers at ``index``, from 0 to 1023, where ``mask`` holds."""
    bits = numbers.to(tl.uint32, bitcast=True)
    return tl.inline_asm_elementwise(
        _STORE, "=r,r,r,r", [_address(staging, index), bits, mask.to(tl.int32)], dtype=tl.int32,
        is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def staged(staging, index):
    """Load the uint32 numbers at ``index``, after a barrier has followed the stores."""
    return tl.inline_asm_elementwise(
        _LOAD, "=r,r", [_address(staging, index)], dtype=tl.uint32, is_pure=False, pack=1
    )
