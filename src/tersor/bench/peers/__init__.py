"""Adapters for other projects' codecs, all of which are optional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final

from tersor.errors import BackendUnavailableError, SpecError

if TYPE_CHECKING:
    from tersor.bench.core.candidate import Candidate

_HERE: Final = "tersor.bench.peers"
PEERS: Final[Mapping[str, str]] = {
    "memcpy": f"{_HERE}.memcpy:Memcpy",
    "lz4": f"{_HERE}.lz4_block:Lz4",
    "zstd": f"{_HERE}.zstd:Zstd",
    "zstd-huffman": f"{_HERE}.zstd_huffman:ZstdHuffman",
    "blosc2": f"{_HERE}.blosc:Blosc2",
    "pcodec": f"{_HERE}.pcodec:Pcodec",
    "sz3": f"{_HERE}.foreign:ForeignPeer:sz3",
    "sz3-nopred": f"{_HERE}.foreign:ForeignPeer:sz3-nopred",
    "zfp": f"{_HERE}.foreign:ForeignPeer:zfp",
    "fbgemm8": f"{_HERE}.fbgemm:Fbgemm:8",
    "fbgemm4": f"{_HERE}.fbgemm:Fbgemm:4",
}
"""Peers on the CPU, as ``"module:class"``, followed by any arguments of the class."""

_NVCOMP: Final = ("LZ4", "Snappy", "GDeflate", "Deflate", "Zstd", "ANS", "Bitcomp", "Cascaded")
DEVICE_PEERS: Final[Mapping[str, str]] = {
    "copy": f"{_HERE}.memcpy:DeviceCopy",
    "launch-copy": f"{_HERE}.launch_copy:LaunchCopy",
    "launch-copy-graph": f"{_HERE}.launch_copy:LaunchCopyGraph",
    **{f"nvcomp-{name.lower()}": f"{_HERE}.nvcomp:Nvcomp:{name}" for name in _NVCOMP},
    **{f"nvcomp-{name.lower()}-codes": f"{_HERE}.nvcomp:NvcompCodes:{name}" for name in _NVCOMP},
}
"""Peers on CUDA, in the same form."""
COPIES: Final = frozenset({"memcpy", "copy", "launch-copy", "launch-copy-graph"})
"""Peers that only copy, as a reference for speeds; they do not compress."""
_PACKAGES: Final = {
    "nvcomp": "nvidia-nvcomp-cu13 or -cu12",
    "fbgemm": "fbgemm-gpu-cpu, in an environment of its own as make test-torchrec does",
}
"""What to install for peers by the prefix of their name; the others come with an extra."""


def peers_of(device: str) -> Mapping[str, str]:
    """Return the peers that run on ``"cpu"`` or on ``"cuda"``."""
    return DEVICE_PEERS if device == "cuda" else PEERS


def load_peer(name: str, device: str = "cpu") -> Candidate:
    """Import and build the peer called ``name``.

    Raises:
        SpecError: no peer on that device has that name.
        BackendUnavailableError: it cannot be imported; the message does not contain its name.
    """
    known = peers_of(device)
    if name not in known:
        choice = ", ".join(known)
        raise SpecError(f"unknown peer {name!r} on {device}; choose from {choice}")
    module, attribute, *arguments = known[name].split(":")
    found = (package for start, package in _PACKAGES.items() if name.startswith(start))
    install = next(found, "tersor[peers]")
    try:
        peer: Candidate = getattr(import_module(module), attribute)(*arguments)
    except ImportError as error:
        raise BackendUnavailableError(f"{error}; install {install}") from error
    return peer


def load_peers(names: Sequence[str], device: str) -> tuple[list[Candidate], list[str]]:
    """Build all available peers; return them with one sentence per reason why others are missing.

    Raises:
        SpecError: no peer on that device has one of the names.
    """
    peers, absent = [], dict[str, list[str]]()
    for name in names:
        try:
            peers.append(load_peer(name, device))
        except BackendUnavailableError as error:
            absent.setdefault(str(error), []).append(name)
    return peers, [f"left out: {', '.join(them)}: {reason}" for reason, them in absent.items()]
