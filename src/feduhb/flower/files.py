"""The files that a strategy writes beside the records of a run: names, reasons, limits, the resolved request.

Each has a type, and a file of another shape is refused when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt

from feduhb.core.types import ClientId
from feduhb.flower.validation import Usual
from feduhb.runs.files import read_bytes, write_atomically

Text = Annotated[str, Field(max_length=1_000_000)]
Count = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Reasons = dict[NonNegativeInt, dict[ClientId, Text]]  # by client, by round counted from 0
Names = dict[ClientId, Text]
ONLY_WORDS = "delete it: it holds only names and reasons for people to read"
ONLY_FIRST = "delete it: it holds only what later answers are compared with"


class WrittenRequest(BaseModel):
    """The content of request.json; requests are texts that `Request.parse` reads, empty if there is none."""

    model_config = ConfigDict(strict=True, frozen=True)

    asked: Text
    request: Text
    earlier: Text
    names: list[Text]
    rows: dict[Text, list[int]]


ADDED = ("statistics", "held_out", "joined")  # what earlier versions did not know


class Memory(BaseModel):
    """What a run remembers of its clients' answers, so that later answers can be compared; the content of limits.json.

    ``examples`` and ``scored`` hold the number of examples in each client's first answer, to train and to score.
    ``held_out`` holds the number of held-out examples in each client's first answer that has one. ``joined`` holds the
    clients whose last batch of one example joined the batch before it.
    ``lengths`` holds the longest median of the updates' norms in a round, by the epochs of the work, and ``statistics``
    the same of the change of each array of statistics.
    """

    examples: dict[ClientId, Count] = Field(default_factory=dict)
    scored: dict[ClientId, Count] = Field(default_factory=dict)
    lengths: dict[NonNegativeInt, Count] = Field(default_factory=dict)
    statistics: dict[NonNegativeInt, dict[Text, Count]] = Field(default_factory=dict)
    bounded: Reasons = Field(default_factory=dict)
    held_out: dict[ClientId, Count] = Field(default_factory=dict)
    joined: set[ClientId] = Field(default_factory=set)

    def get_usual(self, epochs: int) -> Usual:
        """Return what is usual in answers to work of some epochs."""
        return Usual(self.lengths.get(epochs), self.statistics.get(epochs, {}))

    def set_usual(self, epochs: int, usual: Usual) -> None:
        """Remember what is usual in answers to work of some epochs, as far as it is known."""
        if usual.update is not None:
            self.lengths[epochs] = usual.update
        if usual.statistics:
            self.statistics[epochs] = dict(usual.statistics)

    def to_json(self) -> dict[str, Any]:
        """Return the content of limits.json, without what earlier versions did not know if there is none of it."""
        found = {**self.model_dump(), "joined": sorted(self.joined)}
        return {key: some for key, some in found.items() if some or key not in ADDED}


def write_file(path: Path, values: Mapping[Any, Any]) -> None:
    """Write a JSON file, unless it already has this content."""
    data = (json.dumps(values, indent=2, sort_keys=True) + "\n").encode()
    if not path.is_file() or read_bytes(path) != data:
        write_atomically(path, data)
