"""Tests that hold locks of runs."""

from quiet import no_waiting_for_others

__all__ = ["no_waiting_for_others"]
