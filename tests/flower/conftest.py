"""Fixtures that make these tests fast: short waits for locks and silent clients."""

from quiet import no_waiting_for_others

__all__ = ["no_waiting_for_others"]
