"""The payload of an error-bounded codec: a header, the coded body, and the outliers.

Read ``layout.py`` first, then ``compose.py``; ``frame.py`` is for many payloads in one buffer.
"""

from tersor.kernels.runtime.op import Op

frame_places = Op.of(__name__, "frame_places", reference="frame", cpu="frame", gpu="gpu.frame")
join_frame = Op.of(__name__, "join_frame", reference="frame", cpu="frame", gpu="gpu.frame")

__all__ = ["frame_places", "join_frame"]
