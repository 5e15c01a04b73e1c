"""TensorBoard: the scores and costs of every round as curves, passed to ``show``."""

from __future__ import annotations

import contextlib
import itertools
import re
import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from feduhb.errors import ConfigError
from feduhb.runs.files import disk_errors
from feduhb.runs.folder import Round

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

COSTS = ("client_epochs", "bytes_down", "bytes_up", "client_seconds", "server_seconds", "evaluate_seconds")


class TensorBoard:
    """Write the scores, the movement and the costs of every round for TensorBoard, and at the end why the run ended.

    Pass it to ``show``, alone or in a list: ``show=["auto", feduhb.TensorBoard("boards")]``. Round t is step t+1. Each run gets
    a folder in ``folder`` by the name of its method; a second feduhb is feduhb-2, and a resumed run continues in its own.
    Needs the extra; in a clone: pip install -c constraints.txt '.[tensorboard]'.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        _import_writer()
        if self.folder.exists() and not self.folder.is_dir():
            raise ConfigError(f"{self.folder} is a file; give TensorBoard a folder")

    def __repr__(self) -> str:
        return f"TensorBoard({str(self.folder)!r})"

    @contextlib.contextmanager
    def watch(self, label: str) -> Generator[Callable[[Round], None]]:
        """Yield the function that writes a round of a run. The files of a run are made with its first round."""
        writer: SummaryWriter | None = None
        last: Round | None = None

        def write(record: Round) -> None:
            nonlocal writer, last
            with disk_errors(self.folder):
                if writer is None:
                    writer = self._open(label, record.round)
                for tag, value in _list_values(record):
                    writer.add_scalar(tag, value, record.round + 1)
                writer.flush()
            last = record

        try:
            yield write
            if writer is not None and last is not None:
                writer.add_text(
                    "stopped", str(last.stopped or f"{last.round + 1} rounds were run"), last.round + 1
                )
        finally:
            if writer is not None:
                writer.close()

    def _open(self, label: str, round: int) -> SummaryWriter:
        """Return a writer into the folder of a run, whose first round in this process is ``round``."""
        name = re.sub(r"[^\w.-]+", "_", label).strip(".") or "run"
        folders = (
            self.folder / one for one in itertools.chain([name], (f"{name}-{i}" for i in itertools.count(2)))
        )
        used = [*itertools.takewhile(Path.exists, folders)]
        resumed = used[-1:] if round else []
        place = next(iter(resumed), None) or self.folder / (f"{name}-{len(used) + 1}" if used else name)
        return _import_writer()(str(place), purge_step=round + 1 if resumed else None)


def _list_values(record: Round) -> Iterator[tuple[str, float]]:
    yield from ((f"scores/{name}", value) for name, value in record.scores.items())
    yield "stop rule/movement", record.moved
    if record.threshold is not None:
        yield "stop rule/threshold", record.threshold
    if record.distance is not None:
        yield "stop rule/distance", record.distance
    yield from ((f"stop rule/held-out {name}", value) for name, value in record.held_out.items())
    yield from ((f"costs/{name}", getattr(record, name)) for name in COSTS)


def _import_writer() -> type[SummaryWriter]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of packages that tensorboard imports
            from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError(
            "TensorBoard is not installed; in a clone: pip install -c constraints.txt '.[tensorboard]'"
        ) from None
    return SummaryWriter
