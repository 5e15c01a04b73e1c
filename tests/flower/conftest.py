"""Fixtures that make these tests fast: short waits for locks and silent clients, and one trial of each model."""

from quiet import no_waiting_for_others, trials_made_once

__all__ = ["no_waiting_for_others", "trials_made_once"]
