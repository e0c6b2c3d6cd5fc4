"""Classes of fields: slots, keyword arguments, inherited fields first."""

from __future__ import annotations

import dataclasses
import pickle

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
