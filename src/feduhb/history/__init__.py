"""What training leaves for methods that replay it, on disk, and how it is itself made to forget."""

from feduhb.history.disk import DiskHistory
from feduhb.history.earlier import Earlier
from feduhb.history.near import Near
from feduhb.history.recorded import Recorded

__all__ = ["DiskHistory", "Earlier", "Near", "Recorded"]
