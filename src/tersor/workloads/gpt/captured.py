"""A rank's forward and backward pass as one CUDA graph, which avoids the cost of many small launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

_WARM_PASSES = 3
"""Warm-up passes before capture, which ``torch.cuda.graph`` requires."""


class CapturedGradients:
    """Replays a function that computes gradients from a captured CUDA graph.

    A GPT of 125M weights launches about a thousand kernels per sequence, which takes the host 20 ms and an
    H200 3 ms.
    """

    def __init__(
        self,
        compute: Callable[[torch.Tensor], torch.Tensor],
        parameters: Sequence[torch.nn.Parameter],
        sequences: torch.Tensor,
    ) -> None:
        """Capture a function that adds to the gradients of ``parameters``.

        Args:
            compute: takes sequences and returns their mean loss.
            parameters: must keep their memory addresses, and have no gradients when called.
            sequences: an example; all calls must have its shape, dtype and device.
        """
        self._parameters = parameters
        self._sequences = sequences.clone()
        stream = torch.cuda.Stream(sequences.device)
        stream.wait_stream(torch.cuda.current_stream(sequences.device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_PASSES):
                compute(self._sequences)
                self._clear()
        torch.cuda.current_stream(sequences.device).wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(sequences.device), torch.cuda.graph(self._graph):
            self._loss = compute(self._sequences)
        self._gradients = [p.grad for p in parameters]
        self._clear()

    def _clear(self) -> None:
        for p in self._parameters:
            p.grad = None

    def __call__(self, sequences: torch.Tensor) -> torch.Tensor:
        """Set the gradients of the parameters and return the mean loss; the next call overwrites both.

        Raises:
            ValueError: the sequences differ in shape, dtype or device from those of the capture.
        """
        if _form(sequences) != _form(self._sequences):
            raise ValueError(
                f"captured with sequences {_form(self._sequences)}, not {_form(sequences)}; give such, or "
                "capture these"
            )
        self._sequences.copy_(sequences)
        self._graph.replay()
        for p, gradient in zip(self._parameters, self._gradients, strict=True):
            p.grad = gradient
        return self._loss


def _form(sequences: torch.Tensor) -> str:
    """Return the properties of its input that a graph is captured for."""
    return f"{tuple(sequences.shape)} of {sequences.dtype} on {sequences.device}"
