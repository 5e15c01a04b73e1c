"""A wrapper around an engine that writes down what passes through it. Methods and pipes never know of it."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feduhb.core.types import ClientId, Engine, Updates, Work
from feduhb.history.disk import DiskHistory


@dataclass(frozen=True, slots=True)
class Recorded:
    """An engine that keeps a history."""

    engine: Engine
    history: DiskHistory

    @property
    def about(self) -> Mapping[str, Any]:
        """The engine's own, and that a history was kept."""
        return {**self.engine.about, "history": "float16" if self.history.half else "full precision"}

    def train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:
        """Let the engine train, and write every block before it is passed on. A round cut short stays unmarked."""
        self.history.begin(round, work.params)
        blocks: list[Mapping[str, Any]] = []
        stream = self.engine.train(work, clients, round)
        try:
            for number, block in enumerate(stream):
                blocks.append(self.history.append(round, number, block))
                yield block
        finally:
            if isinstance(stream, Generator):  # whoever closes this one means the engine
                stream.close()
        self.history.finish(round, work.params, blocks)
