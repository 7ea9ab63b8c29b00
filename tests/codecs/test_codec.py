"""What making a subclass of ``Codec`` does with the methods and arguments of the class."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch

from tersor.codecs import Codec
from tersor.codecs.raw import Raw


class Static(Raw):
    @staticmethod
    def encode(xs, bounds=None):
        return Raw().encode(xs, bounds)


class OfTheClass(Raw):
    @classmethod
    def encode(cls, xs, bounds=None):
        assert cls is OfTheClass
        return Raw().encode(xs, bounds)


class FromProperty(Raw):
    @property
    def encode(self):
        return Raw().encode


@pytest.mark.parametrize("kind", [Static, OfTheClass, FromProperty])
def test_a_method_may_be_any_kind_of_attribute(kind):
    x = torch.randn(5)
    assert torch.equal(kind().pack(x).payloads[0].view(torch.float32), x)


@pytest.mark.parametrize("kind", [Static, OfTheClass])
def test_static_and_class_methods_are_guarded_in_forked_children(kind):
    assert kind.encode._is_fork_safe


class Named:
    label: ClassVar[str] = ""

    def __init_subclass__(cls, label: str = "", **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls.label = label


def test_arguments_of_the_class_reach_the_other_bases():
    class Mine(Codec, Named, label="mine"):
        pass

    assert Mine.label == "mine"


def test_arguments_that_no_base_takes_are_refused():
    with pytest.raises(TypeError, match="keyword"):

        class Mine(Raw, label="mine"):
            pass
