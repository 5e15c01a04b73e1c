"""What a run starts from that its seed did not draw: given weights, frozen parameters and constant buffers.

A request that starts from a plain fresh model runs nothing in here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from feduhb.core.flat import flatten
from feduhb.core.modules import digest_carried, list_carried
from feduhb.errors import RunFolderError
from feduhb.runs.checkpoint import digest_weights

DECLARED = "the operator declares that these weights are public and never saw clients' data"
SHARED_START = (
    "A shared start lets a server take the difference of two runs, even if each draws its own seed: the difference of their first "
    "sums points to the update of the clients that left. Delete old sums with the old run."
)
GIVEN_NOTICE = f"every run starts from the weights that were given: {DECLARED}. {SHARED_START}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSettings:
    """[start]: what a run starts from that was not drawn. Written into a run's folder if there is anything."""

    given: bool = False  # whether the first weights were given: a declaration that they are public
    sha256: str | None = None  # of these weights, as `digest_weights` gives it
    carried: tuple[str, ...] = ()  # names of frozen parameters and constant buffers, sorted
    carried_sha256: str | None = None

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 (read by pydantic)


def describe_start(module: nn.Module, *, given: bool) -> StartSettings | None:
    """Return the [start] table of a run that starts at a module; None if all of it was drawn.

    Args:
        given: whether the module's weights were given, and not drawn.
    """
    carried = sorted(name for name, _ in list_carried(module))
    return record_start(flatten(module) if given else None, carried, digest_carried(module))


def record_start(given: Tensor | None, carried: Sequence[str], digest: str | None) -> StartSettings | None:
    """Return the [start] table of a run; None if all of it was drawn.

    Args:
        given: the weights [P] that were given; None if they were drawn.
        carried: the names of frozen parameters and constant buffers, sorted.
        digest: of these, as `digest_carried` gives it.
    """
    if given is None and not carried:
        return None
    own = None if given is None else digest_weights(given)
    return StartSettings(given=given is not None, sha256=own, carried=tuple(carried), carried_sha256=digest)


def explain_given(start: StartSettings) -> str | None:
    """Return the operator's declaration, and what a shared start reveals; None if the start was not given."""
    if not start.given:
        return None
    return f"The start was given, not drawn (SHA-256 {start.sha256}): {DECLARED}. {SHARED_START}"


def check_start(
    path: Path, recorded: StartSettings | None, found: StartSettings | None, what: str = "this federation"
) -> None:
    """Raise RunFolderError if a federation has other given weights or carried parts than the run in a folder.

    Args:
        what: has the start that was found, in words.
    """
    old, new = recorded or StartSettings(), found or StartSettings()
    if old.given != new.given:
        names = {True: "given weights", False: "a fresh model"}
        raise RunFolderError(
            f"{path} started from {names[old.given]}, but {what} starts from {names[new.given]}; "
            f"give it with start={'given' if old.given else 'fresh'!r}"
        )
    if old.sha256 != new.sha256:
        raise RunFolderError(
            f"{path} started from other given weights, with the SHA-256 {str(old.sha256)[:12]}..., not {str(new.sha256)[:12]}...; "
            "give the module with the weights that the run started from"
        )
    if old.carried_sha256 != new.carried_sha256:
        some = ", ".join((old.carried or new.carried)[:3])
        raise RunFolderError(
            f"{path} was made with other frozen parameters or constant buffers ({some}); give the module of the run"
        )
