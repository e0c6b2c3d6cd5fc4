"""What holds for all tests: no example of a property has a time limit, as a busy machine is slow."""

from hypothesis import settings

settings.register_profile("mqlake", deadline=None)
settings.load_profile("mqlake")
