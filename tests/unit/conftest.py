"""Machines are shared: a slow moment is no failure."""

from hypothesis import settings

settings.register_profile("shared", deadline=None)
settings.load_profile("shared")
