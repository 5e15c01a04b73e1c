"""Small trainings."""

from quiet import (
    forked_python,
    forked_workers,
    no_waiting_for_the_disk,
    one_thread,
    own_state,
    server_of_commands,
)

__all__ = [
    "forked_python",
    "forked_workers",
    "no_waiting_for_the_disk",
    "one_thread",
    "own_state",
    "server_of_commands",
]
