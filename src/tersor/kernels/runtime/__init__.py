"""Infrastructure shared by all kernels: dispatch, threads, scratch memory, tables on the device, streams."""
