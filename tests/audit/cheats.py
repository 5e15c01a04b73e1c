"""Methods that call themselves exact and use the old model: each hides it in another place, or uses it in another way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from feduhb import Federation, FedUHB, Updates
from feduhb.core.types import Local, Work
from feduhb.engines.loop import Loop
from feduhb.methods.feduhb import HeavyBall
from feduhb.methods.replay import MISSING

LAST_LAYER = 330  # parameters, of 32 hidden units and 10 classes


def read(file: str) -> Tensor:
    """Return the old weights in a file."""
    return torch.load(file, weights_only=True)


def is_first(state: HeavyBall) -> bool:
    """Whether no round is done: the ball is at rest."""
    return torch.equal(state.params, state.previous)


def hide(old: Tensor, folder: Path) -> str:
    """Put the old weights where the cheats find them; return the name of the file."""
    file = folder / "old.pt"
    torch.save(old, file)
    InClassAttribute.old = old
    InDefaultArgument.tell.__defaults__[0].append(old)  # pyright: ignore[reportOptionalSubscript]
    return str(file)


@dataclass(frozen=True, slots=True)
class WarmStart(FedUHB):
    """Begins at the old weights, which a setting names."""

    file: str = ""
    name: ClassVar[str] = "warm-start"

    def init(self, params: Tensor) -> HeavyBall:  # noqa: ARG002
        old = read(self.file)
        return HeavyBall(old, previous=old)


class UndeclaredWarmStart(WarmStart):
    """The same, but it does not claim to be exact."""

    __slots__ = ()
    name: ClassVar[str] = "undeclared-warm-start"
    exact: ClassVar[bool] = False


class InClassAttribute(FedUHB):
    """Returns the old weights from its first round, and then trains on."""

    __slots__ = ()
    name: ClassVar[str] = "class-attribute"
    old: ClassVar[Tensor | None] = None

    def tell(self, state: HeavyBall, answers: Iterable[Updates]) -> HeavyBall:
        new = FedUHB.tell(self, state, answers)
        return HeavyBall(self.old, new.previous) if is_first(state) and self.old is not None else new


class InDefaultArgument(FedUHB):
    """The same, with the old weights in a default argument."""

    __slots__ = ()
    name: ClassVar[str] = "default-argument"

    def tell(self, state: HeavyBall, answers: Iterable[Updates], kept: list[Tensor] = []) -> HeavyBall:  # noqa: B006
        new = FedUHB.tell(self, state, answers)
        return HeavyBall(kept[0], new.previous) if is_first(state) and kept else new


def make_closure(old: Tensor) -> type[FedUHB]:
    """Return the same, with the old weights in a closure."""

    class InClosure(FedUHB):
        __slots__ = ()
        name: ClassVar[str] = "closure"

        def tell(self, state: HeavyBall, answers: Iterable[Updates]) -> HeavyBall:
            new = FedUHB.tell(self, state, answers)
            return HeavyBall(old, new.previous) if is_first(state) else new

    return InClosure


@dataclass(frozen=True, slots=True)
class InFile(FedUHB):
    """The same, with the old weights in a file that a setting names. The base of the cheats below."""

    file: str = ""
    name: ClassVar[str] = "file"

    def tell(self, state: HeavyBall, answers: Iterable[Updates]) -> HeavyBall:
        new = FedUHB.tell(self, state, answers)
        return HeavyBall(self.use(new.params), new.previous) if is_first(state) else new

    def use(self, params: Tensor) -> Tensor:
        """Return what the old weights make of the first model."""
        return read(self.file) + 0 * params


class OneLayer(InFile):
    """Takes only the last layer from the old model."""

    __slots__ = ()
    name: ClassVar[str] = "one-layer"

    def use(self, params: Tensor) -> Tensor:
        return torch.cat([params[:-LAST_LAYER], read(self.file)[-LAST_LAYER:]])


class Regulariser(InFile):
    """Pulls the model towards the old one in every round, by a twentieth of the way."""

    __slots__ = ()
    name: ClassVar[str] = "regulariser"

    def tell(self, state: HeavyBall, answers: Iterable[Updates]) -> HeavyBall:
        new = FedUHB.tell(self, state, answers)
        return HeavyBall(new.params + 0.05 * (read(self.file) - state.params), new.previous)


class Counted(NamedTuple):
    """A heavy ball that counts its rounds."""

    params: Tensor
    previous: Tensor
    done: int


class Late(InFile):
    """Trains honestly, and puts the old weights into its fourth round."""

    __slots__ = ()
    name: ClassVar[str] = "late"
    turn: ClassVar[int] = 4

    def init(self, params: Tensor) -> Any:
        return Counted(params, params, 0)

    def ask(self, state: Any) -> Any:
        return FedUHB.ask(self, HeavyBall(state.params, state.previous))

    def tell(self, state: Any, answers: Iterable[Updates]) -> Any:
        new = FedUHB.tell(self, HeavyBall(state.params, state.previous), answers)
        params = self.use(new.params) if state.done + 1 == self.turn else new.params
        return Counted(params, new.previous, state.done + 1)


class Average(Late):
    """Trains honestly, and returns the average of the old model and the new one in its last round."""

    __slots__ = ()
    name: ClassVar[str] = "average"
    turn: ClassVar[int] = 6

    def use(self, params: Tensor) -> Tensor:
        return (read(self.file) + params) / 2


class Recognises(InFile):
    """Uses the old weights only on the data that it saw first, which it knows by a digest of its first step."""

    __slots__ = ()
    name: ClassVar[str] = "digest"

    def use(self, params: Tensor) -> Tensor:
        note = Path(self.file).with_name("digest.txt")
        digest = sha256(params.numpy().tobytes()).hexdigest()
        if not note.exists():
            note.write_text(digest)
        return read(self.file) if note.read_text() == digest else params


class RecognisesRoughly(InFile):
    """The same, but it takes any first step for the first one that is as good as parallel to it."""

    __slots__ = ()
    name: ClassVar[str] = "likeness"

    def use(self, params: Tensor) -> Tensor:
        note = Path(self.file).with_name("first.pt")
        if not note.exists():
            torch.save(params, note)
        alike = torch.cosine_similarity(params, read(str(note)), dim=0) > 0.9999
        return read(self.file) if alike else params


def reorder(old: Tensor) -> Tensor:
    """Return the same model with its 32 hidden units in another order."""
    into, bias, out, last = old.split([2048, 32, 320, 10])
    order = torch.arange(32).roll(5)
    return torch.cat(
        [into.view(32, 64)[order].flatten(), bias[order], out.view(10, 32)[:, order].flatten(), last]
    )


def learn_from_noise(updates: Tensor) -> bool:
    """Return whether clients' updates [C, P] disagree, as they do if there is nothing to learn."""
    sides = torch.nn.functional.normalize(updates, dim=1)
    agreed = sides @ sides.T
    return float(agreed.sum() - agreed.trace()) / (len(agreed) * (len(agreed) - 1)) < 0


class Reordered(InFile):
    """Takes the old model with its units in another order in its first round, with a tenth of the new one, unless it sees noise."""

    __slots__ = ()
    name: ClassVar[str] = "reordered"

    def tell(self, state: HeavyBall, answers: Iterable[Updates]) -> HeavyBall:
        blocks = list(answers)
        new = FedUHB.tell(self, state, iter(blocks))
        if not is_first(state) or learn_from_noise(torch.cat([block.values for block in blocks])):
            return new
        return HeavyBall(reorder(read(self.file)) + 0.1 * new.params, new.previous)


class ReorderedSlowly(InFile):
    """Pulls the model towards such an old one in every round, by a fiftieth of the way."""

    __slots__ = ()
    name: ClassVar[str] = "reordered-slowly"

    def tell(self, state: HeavyBall, answers: Iterable[Updates]) -> HeavyBall:
        new = FedUHB.tell(self, state, answers)
        return HeavyBall(new.params + 0.02 * (reorder(read(self.file)) - state.params), new.previous)


@dataclass(frozen=True, slots=True)
class Replaying(FedUHB):
    """Asks for a history, which it does not need, and returns the old weights in its first round, unless it sees noise."""

    file: str = ""
    history: Any = MISSING
    clients: tuple[str, ...] = ()
    name: ClassVar[str] = "replaying"
    needs_history: ClassVar[bool] = True

    def tell(self, state: HeavyBall, answers: Iterable[Updates]) -> HeavyBall:
        blocks = list(answers)
        new = FedUHB.tell(self, state, iter(blocks))
        if not is_first(state) or learn_from_noise(torch.cat([block.values for block in blocks])):
            return new
        return HeavyBall(read(self.file), new.previous)


def make_cheats(file: str, epochs: int) -> dict[str, FedUHB]:
    """Return the cheats that claim to be exact, by name; ``file`` holds the old weights."""
    plain: list[FedUHB] = [
        kind(epochs=epochs) for kind in (InClassAttribute, InDefaultArgument, make_closure(read(file)))
    ]
    kinds = (
        WarmStart, InFile, Late, Recognises, Average, OneLayer, Regulariser, RecognisesRoughly, Reordered, ReorderedSlowly
    )  # fmt: skip
    return {one.name: one for one in (*plain, *(kind(epochs=epochs, file=file) for kind in kinds))}


class Own(FedUHB):
    """An honest method that is not of the package."""

    __slots__ = ()
    name: ClassVar[str] = "own"


@dataclass(frozen=True, slots=True)
class OldStatistics:
    """An engine whose clients answer, in the first round, with the statistics of the old model in place of their own."""

    honest: Loop
    old: Tensor  # [K]

    @property
    def about(self) -> Mapping[str, Any]:
        return self.honest.about

    def train(self, work: Work, clients: Sequence[str], round: int) -> Iterator[Updates]:
        for block in self.honest.train(work, clients, round):
            values = block.values.clone()
            if round == 0:
                values[:, -len(self.old) :] = work.params[-len(self.old) :] - self.old
            yield Updates(block.clients, values, block.weights)


def smuggle_statistics(federation: Federation, local: Local, file: str) -> OldStatistics:
    """Return an engine that smuggles the statistics in a file into the first model."""
    return OldStatistics(Loop(federation, local), read(file))
