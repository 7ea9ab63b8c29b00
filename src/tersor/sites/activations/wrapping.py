"""Wrapped modules: every forward pass runs under compression, with rules for parts of the module."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from inspect import getattr_static
from threading import local
from types import CodeType
from typing import Any, Final
from weakref import ref

from torch import nn
from torch.utils.hooks import RemovableHandle

from tersor.errors import SpecError
from tersor.sites.activations.compression import Compression
from tersor.sites.activations.quality import GivenRule, Rule, in_words

_LIKE_REGULAR_EXPRESSION: Final = re.compile(r"[.)][*+]|\]\+|[\\^$|()]")
_MOST_NAMES: Final = 6

Rules = Mapping[str | type[nn.Module], GivenRule]


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
        module: its ``forward`` and those of parts with rules are replaced; parameters and ``state_dict`` are unchanged.
        rules: how the tensors of its parts are saved. A key is a type of module, or a shell pattern for the whole
            name in ``named_modules`` (``*``, which also matches dots, ``?`` and ``[ab]``). A value is a factor on
            the common step or bound (0.5: twice as fine), a codec or its id, or None for exact. The first rule that matches
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
    removals = [_Forward.put_on(part, made, rule) for part, rule in found]
    # last, because rules hold inside the context only
    removals.append(_Forward.put_on(module, made))
    object.__setattr__(module, _WRAPPED, (made, removals))
    return made


def _check_types(module: object, rules: object, compression: object) -> None:
    if not isinstance(module, nn.Module):
        raise SpecError(f"wrap takes a module, not {in_words(module)}")
    if rules is not None and not isinstance(rules, Mapping):
        raise SpecError(
            f"rules are a dict from patterns or types to a factor, a codec, its id or None, not {in_words(rules)}"
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
    wrapped: tuple[Compression, list[Callable[[], None]]] | None = getattr(module, _WRAPPED, None)
    if wrapped is None:
        raise SpecError("this module is not wrapped")
    compression, removals = wrapped
    for remove in reversed(removals):
        remove()
    object.__delattr__(module, _WRAPPED)
    return compression


class _Forward:
    """Replaces ``forward`` of a module by one in a context; copied with the module.

    Hooks alone could not leave the context: torch calls none if ``KeyboardInterrupt`` or ``GeneratorExit`` passes.
    """

    def __init__(
        self,
        module: nn.Module,
        inner: Callable[..., Any] | None,
        compression: Compression,
        *rule: Rule,
    ) -> None:
        """Enter a compression or, if a rule is given, that rule of the compression.

        Args:
            module: whose ``forward`` this is.
            inner: called in the context; None for ``forward`` of the module's class.
            compression: the compression.
            *rule: at most one rule.
        """
        # the module holds this, and without a cycle it is freed at once
        self._module = ref(module)
        self._inner, self._compression, self._rule = inner, compression, rule
        self._is_removed = False
        self._handle: RemovableHandle | None = None
        self._thread_state = local()

    @classmethod
    def put_on(cls, module: nn.Module, compression: Compression, *rule: Rule) -> Callable[[], None]:
        """Replace ``forward`` of a module, and return a function that undoes it."""
        made = cls(module, vars(module).get("forward"), compression, *rule)
        made._handle = module.register_forward_pre_hook(made.note)
        object.__setattr__(module, "forward", made)
        return made.remove

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy without what belongs to a thread."""
        state = {"_is_removed": self._is_removed, "_handle": self._handle}
        return _Forward, (self._module(), self._inner, self._compression, *self._rule), state

    def note(self, module: nn.Module, _: Any) -> None:
        """Note which module this thread calls next: replicas of ``nn.DataParallel`` have this ``forward`` too."""
        # a weak reference: a hook behind this one may raise, and the module would then hold itself
        self._thread_state.module = ref(module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module in the context."""
        noted = getattr(self._thread_state, "module", None)
        self._thread_state.module = None
        forward = self._found(None if noted is None else noted())
        if self._is_removed:
            return forward(*args, **kwargs)
        with self._compression.rule_if_open(*self._rule) if self._rule else self._compression:
            return forward(*args, **kwargs)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """What is called in the context; ``inspect.signature`` shows its arguments."""
        return self._found(None)

    def _found(self, module: nn.Module | None) -> Callable[..., Any]:
        """Return what is called for a module, by default the wrapped one."""
        if self._inner is not None:
            return self._inner
        called = self._module() if module is None else module
        found: Callable[..., Any] = getattr_static(type(called), "forward").__get__(called)
        return found

    @property
    def __code__(self) -> CodeType:
        """That of what is called, from which ``torch.export`` takes the names of arguments."""
        found: CodeType = self.__wrapped__.__code__
        return found

    def remove(self) -> None:
        """Restore the module; if its ``forward`` has been replaced since, enter no context from now on."""
        self._is_removed, module = True, self._module()
        if self._handle is not None:
            self._handle.remove()
        if module is None or vars(module).get("forward") is not self:
            return
        object.__delattr__(module, "forward")
        if self._inner is not None:
            object.__setattr__(module, "forward", self._inner)


def _matched(
    module: nn.Module, rules: Mapping[Any, GivenRule], compression: Compression
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
