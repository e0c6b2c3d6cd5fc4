import pytest

from mqlake.remoting.loop import run
from mqlake.remoting.service import Service


class Lamp(Service):
    def __init__(self):
        self.is_on = False

    async def start(self):
        self.is_on = True

    async def close(self):
        self.is_on = False


def test_it_runs_inside_and_is_closed_whatever_happened():
    async def inside(lamp):
        async with lamp as same:
            assert same is lamp
            assert lamp.is_on
            raise LookupError

    lamp = Lamp()
    with pytest.raises(LookupError):
        run(inside(lamp))
    assert not lamp.is_on
