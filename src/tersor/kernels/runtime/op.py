"""Choose the implementation of a kernel by the tensor's device, or as the user forces it.

Every operation has a ``reference`` (plain torch, defines the answer) and faster equivalents that
give the same bits. Nothing falls back silently: a missing package raises ``BackendUnavailableError``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, Final

import torch

from tersor.errors import BackendUnavailableError, SpecError

BACKENDS: Final = ("reference", "cpu", "gpu")
_PACKAGES: Final = {"cpu": "numba", "gpu": "triton"}
_BACKEND_OF_DEVICE: Final = {"cpu": "cpu", "cuda": "gpu"}
_forced: ContextVar[str | None] = ContextVar("tersor_backend", default=None)


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Run every kernel inside the block on the named backend, whatever the tensor's device.

    The environment variable ``TERSOR_KERNELS`` does the same for a whole process.
    """
    token = _forced.set(_known(name))
    try:
        yield
    finally:
        _forced.reset(token)


def _known(name: str) -> str:
    if name not in BACKENDS:
        raise SpecError(f"unknown kernel backend {name!r}; choose one of {', '.join(BACKENDS)}")
    return name


def backend_for(device: torch.device) -> str:
    """Return the backend that runs kernels on tensors of ``device``."""
    forced = _forced.get() or os.environ.get("TERSOR_KERNELS")
    if forced:
        return _known(forced)
    kind = device.type
    return _BACKEND_OF_DEVICE.get(kind, kind)


COMPOSED: Final = "composed"
"""The target built from other operations, each of which chooses its own backend."""


_CPU: Final = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Op:
    """One operation and where its implementations live, as ``"module:function"``.

    Calling the op picks the backend by the device of its first argument, a tensor or a list of
    tensors on one device. A backend without a target of its own runs the one named ``composed``.
    """

    name: str
    targets: dict[str, str]
    _loaded: dict[str, Callable[..., Any]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, folder: str, name: str, **modules: str) -> Op:
        """Return the operation implemented by modules of the package ``folder``, one per backend.

        Example:
            >>> Op.of("tersor.kernels.pack.blocks", "pack", gpu="gpu.pack").targets
            {'gpu': 'tersor.kernels.pack.blocks.gpu.pack:pack'}
        """
        return cls(name, {backend: f"{folder}.{modules[backend]}:{name}" for backend in modules})

    def implementation(self, backend: str) -> Callable[..., Any]:
        """Import and return one implementation, which runs on ``backend`` whatever the tensors' device.

        Raises:
            BackendUnavailableError: there is none, or its package cannot be imported.
        """
        is_own = backend in self.targets or COMPOSED not in self.targets
        return partial(_run_on, _known(backend), self._load(backend if is_own else COMPOSED))

    def _load(self, backend: str) -> Callable[..., Any]:
        if backend in self._loaded:
            return self._loaded[backend]
        if backend not in self.targets:
            raise BackendUnavailableError(
                f"{self.name} has no {backend} kernel; move the tensor to the CPU, "
                "or set TERSOR_KERNELS=reference to run the slow version on purpose"
            )
        module, function = self.targets[backend].split(":")
        try:
            loaded = getattr(import_module(module), function)
        except ImportError as error:
            package = _PACKAGES.get(backend)
            if package is None or package not in str(error):
                raise
            raise BackendUnavailableError(
                f"{self.name} on this device needs {package}, which cannot be imported; install "
                "it, or set TERSOR_KERNELS=reference to run the slow version on purpose"
            ) from error
        self._loaded[backend] = loaded
        return loaded  # type: ignore[no-any-return]

    def __call__(self, x: torch.Tensor | Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        """Run the operation on ``x``'s device; an empty list is treated as being on the CPU."""
        first = x if isinstance(x, torch.Tensor) else next(iter(x), None)
        backend = backend_for(_CPU if first is None else first.device)
        is_own = backend in self.targets or COMPOSED not in self.targets
        return self._load(backend if is_own else COMPOSED)(x, *args, **kwargs)


def _run_on(backend: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with use_backend(backend):
        return function(*args, **kwargs)
