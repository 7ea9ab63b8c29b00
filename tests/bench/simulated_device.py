"""A CUDA device that only keeps the time: the host queues work, and the device does it later."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from tersor.bench.core import timing

READ_S = 57e-6
"""Of one of the reads that give the host a lead."""


class SimulatedDevice:
    """Time of a host and of its device, in seconds."""

    def __init__(self):
        self.now = 0.0
        self.busy_until = 0.0

    def launch(self, host_s, device_s):
        """Queue work: the host takes its time to, and the device begins when it has the work."""
        self.now += host_s
        self.busy_until = max(self.now, self.busy_until) + device_s

    def wait(self, *_):
        """Let the host wait for all that was queued."""
        self.now = max(self.now, self.busy_until)

    def patch(self, monkeypatch):
        """Put this in the place of torch's device and of the host's clock."""
        device = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                self.at = max(device.now, device.busy_until)

            def synchronize(self):
                device.now = max(device.now, self.at)

            def elapsed_time(self, other):
                return (other.at - self.at) * 1e3

        lead = SimpleNamespace(sum=lambda: device.launch(2e-6, READ_S))
        fake = SimpleNamespace(
            cuda=SimpleNamespace(
                Event=Event,
                synchronize=self.wait,
                get_device_properties=lambda device: SimpleNamespace(L2_cache_size=2**20),
            ),
            zeros=lambda *size, **options: lead,
            float32=torch.float32,
        )
        monkeypatch.setattr(timing, "torch", fake)
        monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: device.now))
        return self
