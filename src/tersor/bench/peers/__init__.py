"""Other projects' codecs, one small adapter each. All are optional."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final

from tersor.errors import BackendUnavailableError, SpecError

if TYPE_CHECKING:
    from tersor.bench.peers.peer import Peer

_HERE: Final = "tersor.bench.peers"
PEERS: Final[Mapping[str, str]] = {
    "memcpy": f"{_HERE}.memcpy:Memcpy",
    "lz4": f"{_HERE}.lz4_block:Lz4",
    "zstd": f"{_HERE}.zstd:Zstd",
    "zstd-huffman": f"{_HERE}.zstd_huffman:ZstdHuffman",
    "blosc2": f"{_HERE}.blosc:Blosc2",
    "sz3": f"{_HERE}.sz3:Sz3",
    "sz3-nopred": f"{_HERE}.sz3:Sz3NoPrediction",
    "zfp": f"{_HERE}.zfp:Zfp",
}


def load_peer(name: str) -> Peer:
    """Import and build the peer called ``name``.

    Raises:
        SpecError: no peer has that name.
        BackendUnavailableError: its package is not installed.
    """
    if name not in PEERS:
        raise SpecError(f"unknown peer {name!r}; choose from {', '.join(PEERS)}")
    module, attribute = PEERS[name].split(":")
    try:
        peer: Peer = getattr(import_module(module), attribute)()
    except ImportError as error:
        raise BackendUnavailableError(
            f"peer {name!r} is left out: {error}; install tersor[peers] to measure it"
        ) from error
    return peer
