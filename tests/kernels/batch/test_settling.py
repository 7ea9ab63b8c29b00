"""Sizes that are read while the host continues are those of their own list, whoever asks for them."""

from __future__ import annotations

from contextlib import suppress
from threading import Barrier, BrokenBarrierError, Thread

import torch

from tersor.kernels.batch import encoded_list
from tersor.kernels.batch.encoded_list import EncodedList, Settling
from tersor.kernels.runtime.readback import Readback
from tests.kernels.simulated_readback import DeviceTensor, Event, main_memory_as_device


def unsettled(size: int) -> EncodedList:
    """Return a list of one payload, whose size is on the simulated device."""
    sizes = torch.tensor([size], dtype=torch.int64).as_subclass(DeviceTensor)
    return EncodedList(sizes, torch.zeros(4096, dtype=torch.uint8))


def sizes_of(settling: Settling) -> list[int]:
    (found,) = settling.finish()
    return list(found.sizes)


def test_sizes_are_those_of_each_list(monkeypatch):
    main_memory_as_device(monkeypatch)
    settlings = [Settling([unsettled(size)]) for size in (8, 800, 16)]
    assert [sizes_of(one) for one in reversed(settlings)] == [[16], [800], [8]]
    # its memory is another list's now
    again = Settling([unsettled(24)])
    assert sizes_of(settlings[0]) == [8]
    assert sizes_of(again) == [24]


def test_two_threads_that_ask_for_the_same_sizes_do_not_mix_up_later_lists(monkeypatch):
    both_wait = Barrier(2)

    class SlowEvent(Event):
        def synchronize(self) -> None:
            # long enough for the other thread to come
            with suppress(BrokenBarrierError):
                both_wait.wait(0.2)

    main_memory_as_device(monkeypatch, SlowEvent)
    settling = Settling([unsettled(64)])
    found: list[list[int]] = []
    threads = [Thread(target=lambda: found.append(sizes_of(settling))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[64], [64]]
    first, second = Settling([unsettled(8)]), Settling([unsettled(800)])
    assert (sizes_of(first), sizes_of(second)) == ([8], [800])


def test_memory_is_given_back_only_after_its_numbers_arrived_and_were_read(monkeypatch):
    events: list[str] = []

    class LoggedEvent(Event):
        def synchronize(self) -> None:
            events.append("arrived")

    main_memory_as_device(monkeypatch, LoggedEvent)
    numbers, reuse = encoded_list._numbers, Readback.reuse

    def logged_numbers(*arguments):
        yield from numbers(*arguments)
        events.append("read")

    monkeypatch.setattr(encoded_list, "_numbers", logged_numbers)
    monkeypatch.setattr(Readback, "reuse", lambda self: (events.append("reused"), reuse(self)))
    assert sizes_of(Settling([unsettled(8)])) == [8]
    assert events == ["arrived", "read", "reused"]
