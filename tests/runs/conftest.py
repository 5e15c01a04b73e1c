"""Nothing here cuts the power or trains anything large."""

from quiet import no_waiting_for_others, no_waiting_for_the_disk, one_thread

__all__ = ["no_waiting_for_others", "no_waiting_for_the_disk", "one_thread"]
