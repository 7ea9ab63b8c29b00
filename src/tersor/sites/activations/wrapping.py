"""Wrapped modules: every forward pass runs under compression, with rules for parts of the module."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from fnmatch import fnmatchcase
from threading import local
from typing import Any, Final

from torch import nn

from tersor.errors import SpecError
from tersor.sites.activations.compression import Compression
from tersor.sites.activations.quality import Rule, in_words

_LIKE_REGULAR_EXPRESSION: Final = re.compile(r"[.)][*+]|\]\+|[\\^$|()]")
_MOST_NAMES: Final = 6

Rules = Mapping[str | type[nn.Module], Rule]


def wrap(
    module: nn.Module,
    rules: Rules | None = None,
    compression: Compression | None = None,
    **options: Any,
) -> Compression:
    """Run every forward pass of a module under compression.

    A copy of the module (``copy.deepcopy``, ``torch.save`` and ``torch.load``) is wrapped too. It has its own
    compression, which continues from the state of this one.

    Args:
        module: gets forward hooks; its parameters and ``state_dict`` are unchanged.
        rules: how the tensors of its parts are saved. A key is a type of module, or a shell pattern for the whole
            name in ``named_modules`` (``*``, which also matches dots, ``?`` and ``[ab]``). A value is a factor on
            the common step or bound (0.5: twice as fine), a codec, or None for exact. The first rule that matches
            a part applies; a part without a rule follows the part around it.
        compression: the compression to use; by default one is made from ``options``.
        **options: options of ``Compression``.

    Returns:
        The compression, with ``report`` and ``state_dict``. ``unwrap(module)`` removes it.

    Raises:
        SpecError: a rule is invalid (see ``Compression.checked_rule``) or matches no part, or the module is wrapped
            already.
    """
    if hasattr(module, _WRAPPED):
        raise SpecError("this module is wrapped already; call unwrap(module) first")
    if compression is not None and options:
        raise SpecError("give a compression or its options, not both")
    _check_types(module, rules, compression)
    made = compression if compression is not None else Compression(**options)
    found = _matched(module, rules or {}, made)
    handles = _ForwardHooks(made).put_on(module)
    for part, rule in found:
        handles += _ForwardHooks(made, rule).put_on(part)
    object.__setattr__(module, _WRAPPED, (made, handles))
    return made


def _check_types(module: object, rules: object, compression: object) -> None:
    if not isinstance(module, nn.Module):
        raise SpecError(f"wrap takes a module, not {in_words(module)}")
    if rules is not None and not isinstance(rules, Mapping):
        raise SpecError(
            f"rules are a dict from patterns or types to a factor, a codec or None, not {in_words(rules)}"
        )
    if compression is not None and not isinstance(compression, Compression):
        raise SpecError(
            f"a compression is one of activations.compressed, not {in_words(compression)}"
        )


_WRAPPED = "_tersor_activations"


def unwrap(module: nn.Module) -> Compression:
    """Undo ``wrap``, and return the compression of the module.

    Raises:
        SpecError: the module is not wrapped.
    """
    wrapped: tuple[Compression, list[Any]] | None = getattr(module, _WRAPPED, None)
    if wrapped is None:
        raise SpecError("this module is not wrapped")
    compression, handles = wrapped
    for handle in handles:
        handle.remove()
    object.__delattr__(module, _WRAPPED)
    return compression


class _ForwardHooks:
    """Forward hooks that enter and leave a context in each thread, also if the module raises; copied with the module."""

    def __init__(self, compression: Compression, *rule: Rule) -> None:
        """Enter a compression or, if a rule is given, that rule of the compression."""
        self._compression, self._rule = compression, rule
        self._thread_state = local()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy without the contexts that are open."""
        return _ForwardHooks, (self._compression, *self._rule)

    def enter(self, *_: Any) -> None:
        """Enter the context: the forward pre-hook."""
        context: Any = self._compression
        stack = ExitStack()
        stack.enter_context(context.rule(*self._rule) if self._rule else context)
        self._open_contexts().append(stack)

    def leave(self, *_: Any) -> None:
        """Leave the context: the forward hook. It returns None, as any other value would replace the output."""
        if open_contexts := self._open_contexts():
            open_contexts.pop().close()

    def _open_contexts(self) -> list[ExitStack]:
        """Return the contexts that this thread has entered and not left."""
        if not hasattr(self._thread_state, "open_contexts"):
            self._thread_state.open_contexts = []
        found: list[ExitStack] = self._thread_state.open_contexts
        return found

    def put_on(self, module: nn.Module) -> list[Any]:
        """Register the hooks, and return their handles."""
        return [
            module.register_forward_pre_hook(self.enter),
            module.register_forward_hook(self.leave, always_call=True),
        ]


def _matched(
    module: nn.Module, rules: Mapping[Any, Rule], compression: Compression
) -> list[tuple[nn.Module, Rule]]:
    checked: dict[Any, Rule] = {}
    for key, rule in rules.items():
        if not isinstance(key, str | type):
            raise SpecError(
                f"a rule is for a pattern of names or for a type of module, not {key!r}"
            )
        checked[key] = compression.checked_rule(rule)
    unused, found = dict.fromkeys(rules), []
    for name, part in module.named_modules():
        fitting = [key for key in rules if _fits(key, name, part)]
        for key in fitting:
            unused.pop(key, None)
        if fitting:
            found.append((part, checked[fitting[0]]))
    if unused:
        raise SpecError(
            f"no part of the module fits the rule for {_and_way_out(next(iter(unused)), module)}"
        )
    return found


def _and_way_out(key: str | type[nn.Module], module: nn.Module) -> str:
    """Describe a key that matches no part, with a hint at keys that would."""
    if isinstance(key, type):
        return f"{in_words(key)}; see the types of its modules()"
    if _LIKE_REGULAR_EXPRESSION.search(key):
        return (
            f"{key!r}; patterns are those of a shell (* for anything, ? for one character, [ab] for one of these), no "
            "regular expressions, and fit whole names"
        )
    names = [name for name, _ in module.named_modules() if name]
    shown = ", ".join(map(repr, names[:_MOST_NAMES]))
    return f"{key!r}; see named_modules(): {shown}{', ...' * (len(names) > _MOST_NAMES)}"


def _fits(key: str | type[nn.Module], name: str, part: nn.Module) -> bool:
    if isinstance(key, str):
        return fnmatchcase(name, key)
    return isinstance(part, key)
