"""Small trainings."""

from quiet import no_waiting_for_the_disk, one_thread, own_state

__all__ = ["no_waiting_for_the_disk", "one_thread", "own_state"]
