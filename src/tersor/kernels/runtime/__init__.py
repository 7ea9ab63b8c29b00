"""What every kernel needs and no codec: dispatch, threads, scratch memory, tables on the device, streams."""
