"""Classes of fields: slots, keyword arguments, inherited fields first."""

from __future__ import annotations

import dataclasses
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest

from mqlake.base.fields import Fields


class Animal(metaclass=Fields):
    name: str
    legs: int = 4

    def told(self) -> str:
        return self.name


class Bird(Animal):
    legs: int = 2
    songs: list[str] = dataclasses.field(default_factory=list)

    def sing(self) -> str:
        return ", ".join(self.songs)

    def told(self) -> str:
        return f"{super().told()} sings {self.sing()}"


def test_a_class_of_fields_is_a_dataclass_with_slots() -> None:
    bird = Bird(name="wren", songs=["tic", "trill"])
    assert [field.name for field in dataclasses.fields(bird)] == ["name", "legs", "songs"]
    assert (bird.legs, bird.sing(), Animal(name="cat").legs) == (2, "tic, trill", 4)
    assert bird.told() == "wren sings tic, trill"
    assert bird == Bird(name="wren", songs=["tic", "trill"]) != Bird(name="wren")
    assert not hasattr(bird, "__dict__")
    with pytest.raises(AttributeError):
        bird.wings = 2  # type: ignore[attr-defined]


def test_fields_are_given_by_name() -> None:
    with pytest.raises(TypeError):
        Animal("cat")  # type: ignore[misc]
    with pytest.raises(TypeError, match="name"):
        Animal()  # type: ignore[call-arg]


def test_objects_can_be_copied_and_pickled() -> None:
    bird = Bird(name="wren")
    assert dataclasses.replace(bird, legs=1) == Bird(name="wren", legs=1)
    assert pickle.loads(pickle.dumps(bird)) == bird
    assert Bird(name="a").songs is not Bird(name="b").songs


def test_a_class_costs_nothing_before_it_is_used() -> None:
    class Fish(Animal):
        fins: int

    assert not isinstance(vars(Fish)["__dataclass_fields__"], dict)
    assert Fish(name="cod", fins=8) == Fish(name="cod", fins=8)
    assert isinstance(vars(Fish)["__dataclass_fields__"], dict)


def test_the_first_use_may_be_any() -> None:
    kinds: list[type[Bird]] = []
    for _ in range(4):

        class Finch(Bird):
            red: bool = True
            KINDS: ClassVar[int] = 3

        kinds.append(Finch)
    assert [field.name for field in dataclasses.fields(kinds[0])] == ["name", "legs", "songs", "red"]
    assert kinds[0].KINDS == 3
    empty = kinds[1].__new__(kinds[1])
    empty.name, empty.legs, empty.songs, empty.red = "a", 1, [], False
    assert repr(empty).endswith("Finch(name='a', legs=1, songs=[], red=False)")
    empty.__class__ = kinds[2]
    assert empty == empty
    assert empty != Bird(name="a")
    assert dataclasses.is_dataclass(kinds[3])


def test_a_method_of_its_own_stays() -> None:
    class Owl(Bird):
        def __init__(self, name: str) -> None:
            super().__init__(name=name, legs=3)

        def __repr__(self) -> str:
            return f"{self.name}!"

    owl = Owl("eve")
    assert (repr(owl), owl.legs, owl == Owl("eve")) == ("eve!", 3, True)


def test_a_field_listed_again_without_a_default_has_none() -> None:
    class Ostrich(Bird):
        legs: int  # type: ignore[misc]

    with pytest.raises(TypeError, match="legs"):
        Ostrich(name="ann")  # type: ignore[call-arg]
    assert Ostrich(name="ann", legs=2).legs == 2


def test_threads_may_use_a_class_first_at_the_same_time() -> None:
    for _ in range(20):

        class Wren(Bird):
            small: bool = True

        barrier = threading.Barrier(4)

        def make(kind: type[Bird] = Wren, barrier: threading.Barrier = barrier) -> str:
            barrier.wait()
            return repr(kind(name="x"))

        with ThreadPoolExecutor(4) as pool:
            made = {future.result() for future in [pool.submit(make) for _ in range(4)]}
        assert len(made) == 1
