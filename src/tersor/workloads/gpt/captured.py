"""A rank's forward and backward pass as one CUDA graph: ranks in one process launch little work each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

_WARM_PASSES = 3
"""Before capture, as ``torch.cuda.graph`` asks for."""


class CapturedGradients:
    """Computes gradients like the function it was given, from one graph that is replayed.

    A GPT of 125M weights starts about a thousand kernels for a sequence, which takes the host 20 ms and
    an H200 3 ms.
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
            parameters: stay where they are in memory. Their gradients are None between calls.
            sequences: of the shape, dtype and device that all calls must have.
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
        """Set the gradients of the parameters; return the mean loss.

        Both are overwritten by the next call.

        Raises:
            ValueError: the sequences have another shape, dtype or device than those that were captured.
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
    """Return all that a graph takes as given of its input."""
    return f"{tuple(sequences.shape)} of {sequences.dtype} on {sequences.device}"
