"""Randomness has an address, never a history.

Every draw is seeded by what it is for, (seed, client id, round, epoch), and never by position or
by how much was drawn before: a client that leaves does not change what anyone else draws.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from hashlib import blake2b

import torch

from feduhb.core.types import ClientId
from feduhb.errors import ConfigError


def seed_for(seed: int, *address: str | int) -> int:
    """Return the 63-bit seed that belongs to an address. Words and numbers never collide: "1" is not 1."""
    spelled = "\x1f".join(
        f"{'str' if isinstance(part, str) else 'int'}:{len(str(part))}:{part}" for part in (seed, *address)
    )
    return int.from_bytes(blake2b(spelled.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *address: str | int) -> torch.Generator:
    """Return a CPU generator of its own for an address."""
    return torch.Generator().manual_seed(seed_for(seed, *address))


def sample_clients(seed: int, round: int, clients: Sequence[ClientId], count: int) -> tuple[ClientId, ...]:
    """Choose ``count`` clients of a round: those with the smallest hash(seed, round, client).

    Who is chosen among those who remain does not depend on who else was ever there.
    """
    if not 1 <= count <= len(clients):
        raise ConfigError(
            f"clients_per_round is {count}, but {len(clients)} clients take part; give 1 to {len(clients)}"
        )
    return tuple(
        sorted(clients, key=lambda client: (seed_for(seed, "sample", round, client), client))[:count]
    )


@contextlib.contextmanager
def fixed_draws(seed: int, *address: str | int) -> Generator[None]:
    """Let code that draws from torch's global CPU generator draw from an address; the caller's state comes back."""
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed_for(seed, *address))
    try:
        yield
    finally:
        torch.default_generator.set_state(before)
