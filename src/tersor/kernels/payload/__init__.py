"""The payload of an error-bounded codec: how it was coded, the coded body, and the outliers.

Order of reading: ``layout.py``, then ``compose.py``; ``frame.py`` for many payloads in one buffer.
"""

from tersor.kernels.runtime.op import Op

frame_places = Op(
    "frame_places",
    {
        "reference": "tersor.kernels.payload.frame:frame_places",
        "cpu": "tersor.kernels.payload.frame:frame_places",
        "gpu": "tersor.kernels.payload.gpu.frame:frame_places",
    },
)
join_frame = Op(
    "join_frame",
    {
        "reference": "tersor.kernels.payload.frame:join_frame",
        "cpu": "tersor.kernels.payload.frame:join_frame",
        "gpu": "tersor.kernels.payload.gpu.frame:join_frame",
    },
)

__all__ = ["frame_places", "join_frame"]
