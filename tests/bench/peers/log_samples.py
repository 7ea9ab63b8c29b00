"""What the programs print, written by hand in their layouts."""

from __future__ import annotations

NVCOMP = """\
----------
files: 1
uncompressed (B): 16777216
comp_size: 1048576, compressed ratio: 16.0000
compression throughput (GB/s): 5.5000
decompression throughput (GB/s): 16.7772
"""

NVCOMP_CSV = """\
Files,Duplicate data,Size in MB,Pages,Avg page size in KB,Max page size in KB,\
Ucompressed size in bytes,Compressed size in bytes,Compression ratio,\
Compression throughput (uncompressed) in GB/s,Decompression throughput (uncompressed) in GB/s
1,4,16.7772,256,65.536,65.536,16777216,1048576,16.00,5.50,16.78
"""

GPULZ = """\
compression ratio: 2.5
compression e2e throughput: 20 GB/s
decompression e2e throughput: 4 GB/s
"""

CUSZ = """\
peeking data, 20 elements
3\t4\t4\t5
[psz::info::discard::comp_hf_encode] time (ms): 0.300000
[psz::info::discard::comp_hf_encode] time (ms): 0.250000
[psz::info::res::comp_hf_encode] shortest time (ms): 0.250000\thighest throughput (GiB/s): 250.00
Huffman in  len:\t16777216
Huffman out len:\t6932734
"Huffman CR = sizeof(E) * len / outlen", where outlen is byte count:\t2.42
[psz::info::discard::decomp_hf_decode] time (ms): 1.000000
[psz::info::res::decomp_hf_decode] shortest time (ms): 1.000000\thighest throughput (GiB/s): 62.50
>>>>  IDENTICAL.
"""

CUSZ_NEW = """\
HF run version-1, input type: u2
[psz::info::res::hf_encode] 125.00 GiB/s at 0.250000 ms
[psz::info::res::hf_decode] 10.00 GiB/s at 1.000000 ms
Huffman in  bytes:\t33554432
Huffman out bytes:\t8388608
Huffman CR (out/in):\t4.00
>>>>  IDENTICAL
"""

SZ3 = """\
compression ratio = 3.32 
compression time = 0.001664
compressed data file = x.sz
Min=-4.1591038703918457031, Max=3.6621868610382080078, range=7.8212907314300537109
Max absolute error = 0.01
Max relative error = 0.0013
PSNR = 62.666528, NRMSE= 0.0007356539582
compression ratio = 3.317712
decompression time = 0.000920 seconds.
decompressed file = x.out
"""  # noqa: W291 (sz3 writes a space there)

SAMPLES = {"nvcomp": NVCOMP, "gpulz": GPULZ, "cusz": CUSZ, "sz3": SZ3}


def logged(command: str, output: str, table: int = 0, step: int = 1) -> str:
    """Return one run as the scripts of the dual-level compression paper log it."""
    return f"Executing: {command}\n{output}Completed: EMB {table}, Iter {step}\n"
