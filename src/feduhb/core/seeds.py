"""Seeds for random draws.

Every draw has an address, (seed, client id, round, epoch), and depends on nothing else: not on a client's position,
nor on earlier draws. A client that leaves does not change the draws of the others.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Generator, Sequence
from hashlib import blake2b

import torch

from feduhb.core.types import ClientId
from feduhb.errors import ConfigError


def draw_seed() -> int:
    """Return a new seed of 63 bits from the operating system's randomness."""
    return secrets.randbits(63)


def seed_for(seed: int, *address: str | int) -> int:
    """Return the 63-bit seed of an address. The text "1" and the number 1 are different addresses."""
    parts = [("str" if isinstance(part, str) else "int", str(part)) for part in (seed, *address)]
    text = "\x1f".join(f"{kind}:{len(part)}:{part}" for kind, part in parts)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *address: str | int) -> torch.Generator:
    """Return a CPU generator seeded by an address."""
    return torch.Generator().manual_seed(seed_for(seed, *address))


def sample_clients(seed: int, round: int, clients: Sequence[ClientId], count: int) -> tuple[ClientId, ...]:
    """Return ``count`` clients for a round: those with the smallest hash(seed, round, client).

    A client that leaves does not change the order of the others.
    """
    if not 1 <= count <= len(clients):
        raise ConfigError(f"clients_per_round is {count}; give 1 to {len(clients)}, the number of clients")
    ranked = sorted(clients, key=lambda client: (seed_for(seed, "sample", round, client), client))
    return tuple(ranked[:count])


@contextlib.contextmanager
def fixed_draws(seed: int, *address: str | int) -> Generator[None]:
    """Seed torch's global CPU generator by an address inside the block; restore its state afterwards."""
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed_for(seed, *address))
    try:
        yield
    finally:
        torch.default_generator.set_state(before)
