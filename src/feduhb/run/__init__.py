"""The one loop, and what may be wrapped around it."""

from feduhb.run.loop import run

__all__ = ["run"]
