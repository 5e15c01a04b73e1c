"""Shadow federations for LiRA: the same training with half of the clients, many times, each time another half."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from feduhb.api import run_method
from feduhb.audit.attacks.lira import Shadows, compute_all_confidences
from feduhb.audit.attacks.membership import Candidates
from feduhb.audit.controls import Controls
from feduhb.audit.steps import ShowRound, Step
from feduhb.core.seeds import generator, seed_for
from feduhb.core.types import ClientId, Method
from feduhb.data.federation import Examples, Federation
from feduhb.engines import EngineMaker
from feduhb.engines.pool import Pool, cores
from feduhb.errors import ConfigError
from feduhb.runs.config import TrainSettings
from feduhb.runs.folder import write_atomically
from feduhb.runs.run import Run
from feduhb.runs.workers import spread
from feduhb.stopping import StopRule

FEWEST = 4  # shadows: with less there is no spread to speak of


class ShadowSet:
    """The shadow federations of one method, trained by a run like another and asked about every candidate.

    Half of the clients take part in each, and the other half in the next. A leaver that takes part trains on as
    many of its candidates as it really trained on, dealt anew each time: members and others are treated alike.
    A shadow's confidences are written at once; the shadow itself, trained on data to be forgotten, never is.
    On a CPU as many shadows as there are cores train at once, each on a core of its own.
    """

    def __init__(
        self,
        controls: Controls,
        federation: Federation,
        candidates: Candidates,
        method: str,
        name: str,
        count: int,
        like: Callable[[], Run],
    ) -> None:
        """Plan the shadows.

        Args:
            method: its name, for people.
            name: of the files, which no other method's shadows have.
            count: an even number.
            like: returns the run whose method, rounds and stop rule the shadows take.
        """
        if count < FEWEST or count % 2:
            raise ConfigError(
                f"{count} shadows are asked for; give an even number of {FEWEST} or more, such as 16"
            )
        if len(federation.clients) < 2:
            raise ConfigError(
                "shadow federations hold half of the clients, and there is only one; audit without shadows"
            )
        self.controls, self.federation, self.candidates = controls, federation, candidates
        self.like = like
        self.deals = [deal(federation, candidates, shadow) for shadow in range(count)]
        self.files = [controls.folder / f"{name}-{shadow:02d}.json" for shadow in range(count)]
        self.steps = [
            Step(f"shadow-{method} {shadow} of {count}", partial(self._wait_for, file), 1, partial(_is_missing, file))
            for shadow, file in enumerate(self.files, 1)
        ]  # fmt: skip
        self._training = self._train()

    def read(self) -> Shadows:
        """Return what all shadows said, once they are trained."""
        self._training.close()
        told = [json.loads(file.read_text()) for file in self.files]
        clients = list(self.candidates.members)
        return Shadows(
            self.candidates,
            {c: torch.stack([torch.tensor(one[c], dtype=torch.float64) for one in told]) for c in clients},
            {c: torch.stack([dealt[c] for dealt in self.deals]) for c in clients},
        )

    def _wait_for(self, file: Path, show: ShowRound) -> None:  # noqa: ARG002
        """Train shadows until one has written its file; others may be trained at the same time."""
        while _is_missing(file):
            next(self._training)
        if not any(map(_is_missing, self.files)):
            self._training.close()  # and with it the processes that trained them

    def _train(self) -> Generator[None]:
        workers = cores() if _one_thread(self.controls.engine) else 1
        yield from spread(train_and_ask, self._jobs(), workers)

    def _jobs(self) -> Iterator[Job]:
        """Plan the shadows that have not written their file yet."""
        alone, like = _one_thread(self.controls.engine), self.like()
        for shadow, (file, dealt) in enumerate(zip(self.files, self.deals, strict=True)):
            if _is_missing(file):
                inner = make_shadow_federation(self.federation, self.candidates, shadow, dealt)
                settings = self.controls.settings_in(inner)
                yield Job(inner, like.method, settings, like.scheduled, like.stop, alone or self.controls.engine, self.candidates, file)  # fmt: skip


def _is_missing(file: Path) -> bool:
    return not file.exists()


def choose_clients(federation: Federation, shadow: int) -> list[ClientId]:
    """Return a shadow's half of the clients; shadows 2 j and 2 j + 1 have one half each."""
    clients = sorted(federation.clients)
    order = torch.randperm(
        len(clients), generator=generator(federation.seed, "shadows", shadow // 2)
    ).tolist()
    half = len(clients) // 2
    return sorted(clients[i] for i in (order[half:] if shadow % 2 else order[:half]))


def deal(federation: Federation, candidates: Candidates, shadow: int) -> dict[ClientId, Tensor]:
    """Return, for every client, which of its candidates [n] a shadow trains on."""
    present, found = choose_clients(federation, shadow), {}
    for client, members in candidates.members.items():
        inside = torch.zeros(len(members) + len(candidates.others[client]), dtype=torch.bool)
        if client in present:
            draw = generator(federation.seed, "deal", shadow, client)
            inside[torch.randperm(len(inside), generator=draw)[: len(members)]] = True
        found[client] = inside
    return found


def make_shadow_federation(
    federation: Federation, candidates: Candidates, shadow: int, dealt: Mapping[ClientId, Tensor]
) -> Federation:
    """Return the federation that a shadow trains in."""

    def examples(client: ClientId) -> Examples | tuple[Tensor, Tensor]:
        own = federation.clients[client]
        if client not in candidates.members:
            return own
        kept = own.where(~torch.isin(own.keys, candidates.members[client].keys))
        parts = [kept.all(), tuple(part[dealt[client]] for part in candidates.all(client))]
        return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])

    return federation.replace(
        clients={client: examples(client) for client in choose_clients(federation, shadow)},
        held_out={},
        seed=seed_for(federation.seed, "shadow", shadow),
        about=None,
    )


@dataclass(frozen=True, slots=True)
class Job:
    """One shadow to train and to ask: whole, so that it can be done in another process."""

    federation: Federation
    method: Method[Any]
    settings: TrainSettings
    rounds: int
    stop: StopRule
    engine: str | EngineMaker
    candidates: Candidates
    file: Path  # where the shadow's confidences are written


def train_and_ask(job: Job) -> None:
    """Train a shadow and write its confidences. It is never on disk itself: a crash costs one shadow."""
    run = run_method(
        job.federation,
        job.method,
        job.settings,
        rounds=job.rounds,
        stop=job.stop,
        engine=job.engine,
        scored=False,
    )
    said = {
        client: values.tolist() for client, values in compute_all_confidences(run, job.candidates).items()
    }
    write_atomically(job.file, json.dumps(said).encode())


def _one_thread(engine: str | EngineMaker) -> EngineMaker | None:
    """Return the engine for several shadows at once; None where they train one by one: on a GPU, or on an engine of the user's own."""
    if engine not in {"auto", "pool"} or torch.cuda.is_available():
        return None
    return partial(Pool, threads=1)
