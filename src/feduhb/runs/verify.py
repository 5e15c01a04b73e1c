"""Check whether the weights in a file are those that a run ended with, by their SHA-256 in result.json.

The digest is that of the bytes of all trained parameters, little-endian, one after the other in the order of
``module.parameters()``, then of the statistics of normalisation layers. A safetensors file does not keep that order, so
result.json records it as the layout. Runs of earlier versions did not. For these, orders are tried: equal digests cannot
be an accident, whatever the order. Frozen parameters and constant buffers have a digest of their own in config.toml.
"""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from feduhb.core.modules import digest_named, is_counter, is_statistic
from feduhb.errors import ModelError, RunFolderError
from feduhb.models import MODELS, make_model
from feduhb.runs.audits import KeptAudit, read_kept_audits
from feduhb.runs.checkpoint import UNREADABLE
from feduhb.runs.config import validate
from feduhb.runs.files import check_regular, open_regular
from feduhb.runs.folder import RunFolder
from feduhb.runs.start import StartSettings

ZIP, PICKLE = b"PK\x03\x04", b"\x80"  # how files of torch.save begin
# Any image that each of the package's models takes: only the names of its parameters are used.
SHAPE = (3, 32, 32)
SAVE = "save the state_dict alone: torch.save(model.state_dict(), FILE)"


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether the weights in a file are those that a run ended with."""

    same: bool
    says: str
    weights_sha256: str  # of the file; empty if its tensors do not have the run's names, shapes or type
    recorded_sha256: str  # of the run
    audit: KeptAudit | None  # the run's last audit
    judged: bool  # whether that audit is about the weights in the file


@dataclass(frozen=True, slots=True)
class _Record:
    """What a run records of the weights that it ended with."""

    digest: str
    parameters: int | None  # None: a retired run does not record it
    layout: Sequence[tuple[str, Sequence[int]]]  # empty in earlier versions
    dtype: torch.dtype | None  # None: the run's own weights are not there any more
    start: StartSettings  # what the run carries besides these weights


@dataclass(frozen=True, slots=True)
class _File:
    """The tensors of a file, in its order."""

    path: Path
    tensors: Mapping[str, Tensor]
    has_order: bool  # whether that is the order in which the module has them


def verify_weights(model: str | Path, run: str | Path) -> Verification:
    """Return whether the weights in a file are those that a run ended with, and what the run's last audit says of them.

    Raise ModelError or RunFolderError if that cannot be judged.

    Args:
        model: a run's state.safetensors, a safetensors file with the named parameters of a module, or a file of
            torch.save with a state_dict. Code in such a file is never run.
        run: the folder of a run that has ended, or was retired.
    """
    record, file = _read_record(RunFolder(Path(run))), _read_file(Path(model))
    found, difference = _compare(file, record)
    same = difference is None
    short = f"SHA-256 {record.digest[:12]}..."
    says = f"{model} holds the weights that {run} ended with ({short}){_name_others(file, record)}"
    if difference is not None:
        says = f"{model} does not hold the weights that {run} ended with ({short}): {difference}"
    audit = next(iter(read_kept_audits(Path(run))), None)
    judged = audit is not None and bool(found) and audit.weights_sha256 == found
    return Verification(same, says, found, record.digest, audit, judged)


def _read_record(files: RunFolder) -> _Record:
    tombstone = files.tombstone()
    if tombstone is not None:
        digest, parameters, start = tombstone["weights_sha256"], None, tombstone.get("start", {})
        layout = [*tombstone.get("layout", {}).items()]
    else:
        start = files.config().get("start", {})  # raises an error if there is no run
        result = files.result()
        digest, parameters, layout = result["weights_sha256"], result["parameters"], result.get("layout", [])
    if not digest:
        raise RunFolderError(
            f"{files.path} was retired before it had ended, so it has no weights to compare with"
        )
    settings = validate(StartSettings, start, f"[start] of {files.path}")
    return _Record(digest, parameters, layout, _read_dtype(files.state_path), settings)


def _read_dtype(path: Path) -> torch.dtype | None:
    """Return the type of a run's own weights; None if they cannot be read."""
    try:
        check_regular(path)
        with safe_open(path, framework="pt") as file:
            return file.get_slice("params")[:0].dtype
    except UNREADABLE:
        return None


def _compare(file: _File, record: _Record) -> tuple[str, str | None]:
    """Return the digest of a file's weights, and how they differ from those of a run; None if they do not."""
    tensors = file.tensors
    if record.layout and {*tensors} != {"params"}:
        names = [name for name, _ in record.layout]
        if missing := [name for name in names if name not in tensors]:
            some = ", ".join([*tensors][:4])
            raise ModelError(
                f"{file.path} has no tensor {missing[0]!r}, but {some}{', ...' if len(tensors) > 4 else ''}; "
                "save the state_dict of the module that was trained, with its own names"
            )
        shapes = {name: tuple(shape) for name, shape in record.layout}
        if other := [name for name in names if tuple(tensors[name].shape) != shapes[name]]:
            return "", f"{other[0]} has the shape {[*tensors[other[0]].shape]}, not {[*shapes[other[0]]]}"
        orders = [names]
    else:
        names = [name for name in tensors if not is_counter(name)]
        orders = [*_list_orders(file, names)]
    count = sum(tensors[name].numel() for name in names)
    if record.parameters is not None and count != record.parameters:
        return "", f"it has {count:,} parameters, not {record.parameters:,}"
    digests = [digest_tensors(tensors[name] for name in order) for order in orders]
    found = record.digest if record.digest in digests else digests[0]
    if found != record.digest:
        if (kind := _find_other_type([tensors[name] for name in names], record)) is not None:
            return found, kind
        if not (record.layout or file.has_order or _is_built_in(names)):
            raise ModelError(
                f"{file.path} does not keep the order of its tensors, and this run does not record it; "
                f"give a file that does: {SAVE}"
            )
        return found, f"the SHA-256 of the file's weights is {found[:12]}..."
    known = {*names, *record.start.carried}
    strange = [name for name in tensors if name not in known and not is_counter(name)]
    if extra := [name for name in strange if not _is_tied(name, names, tensors)]:
        return found, f"it also holds {', '.join(extra)}, which the run does not have; the rest is the same"
    if _has_carried(file, record) and _digest_carried(file, record) != record.start.carried_sha256:
        some = ", ".join(record.start.carried[:3])
        return found, f"its frozen parameters or constant buffers ({some}) are others; the rest is the same"
    return found, None


def _has_carried(file: _File, record: _Record) -> bool:
    """Return whether a file holds all that a run carries; a state_dict lacks buffers that are not persistent."""
    return bool(record.start.carried) and {*record.start.carried} <= {*file.tensors}


def _digest_carried(file: _File, record: _Record) -> str:
    return digest_named((name, file.tensors[name]) for name in record.start.carried)


def _name_others(file: _File, record: _Record) -> str:
    """Return what a file holds besides the weights, in words, and whether it was compared."""
    counters = [name for name in file.tensors if is_counter(name)]
    carried = [name for name in record.start.carried if name in file.tensors]
    if _has_carried(file, record):
        compared, skipped = carried, counters
    else:
        compared, skipped = [], counters + carried
    said = f", and what the run carries: {', '.join(compared)}" if compared else ""
    return said + (f"; not compared: {', '.join(skipped)}" if skipped else "")


def _find_other_type(tensors: Sequence[Tensor], record: _Record) -> str | None:
    """Return a remark if the weights have another type than those of the run; None if they have the same."""
    kinds = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors})
    wanted = None if record.dtype is None else str(record.dtype).removeprefix("torch.")
    if kinds == [wanted] or (wanted is None and kinds == ["float32"]):
        return None
    run = f"{wanted} as those of the run" if wanted else "float32"
    return f"its tensors are {' and '.join(kinds)}, not {run}; a copy in another precision has other weights"


def _is_tied(name: str, others: Iterable[str], tensors: Mapping[str, Tensor]) -> bool:
    """Whether a tensor is another one under a second name, as a state_dict lists parameters that a module shares."""
    digest = digest_tensors([tensors[name]])
    same = (other for other in others if tensors[other].shape == tensors[name].shape)
    return any(digest_tensors([tensors[other]]) == digest for other in same)


def digest_tensors(tensors: Iterable[Tensor]) -> str:
    """Return the SHA-256 of the bytes of some tensors, one after the other."""
    total = sha256()
    for tensor in tensors:
        total.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _list_orders(file: _File, names: list[str]) -> Iterator[list[str]]:
    """Yield the orders that the weights of a run without a layout may have had, the likeliest first."""
    statistics = [name for name in names if is_statistic(name)]
    if file.has_order:
        yield [name for name in names if name not in statistics] + statistics
    yield from (order for order in _list_built_in() if {*order} == {*names})
    # As modules in a row have them: by number, and the weight before the bias.
    yield sorted(names, key=lambda name: [_rank(part) for part in name.split(".")])
    yield names


def _rank(part: str) -> tuple[int, int, str]:
    number = int(part) if re.fullmatch(r"[0-9]{1,9}", part) else -1
    return number, ("weight", "bias").index(part) if part in {"weight", "bias"} else -1, part


def _list_built_in() -> Iterator[list[str]]:
    """Yield the names of the parameters of each model of this package, in order."""
    for name in MODELS:
        with torch.device("meta"):
            yield [key for key, _ in make_model(name, SHAPE, 2).named_parameters()]


def _is_built_in(names: Sequence[str]) -> bool:
    return any({*order} == {*names} for order in _list_built_in())


def _read_file(path: Path) -> _File:
    """Return the tensors of a file; raise ModelError if it holds none, or something else."""
    try:
        with open_regular(path) as file:
            start = file.read(4)
            if start == ZIP or start[:1] == PICKLE:
                file.seek(0)
                return _File(path, _check(path, _load_torch(path, file)), has_order=True)
    except OSError as error:
        raise ModelError(
            f"{path} cannot be read: {error.strerror or error}; give a file with weights"
        ) from None
    try:
        with safe_open(path, framework="pt") as file:
            is_state = "state" in (file.metadata() or {}) and "params" in file.keys()  # noqa: SIM118 (not a dict)
            names = ["params"] if is_state else [*file.keys()]
            tensors = {name: file.get_tensor(name) for name in names}
    except UNREADABLE:
        raise ModelError(
            f"{path} is neither a safetensors file nor one of torch.save, or it is damaged; {SAVE}"
        ) from None
    return _File(path, _check(path, tensors), has_order=len(tensors) == 1)


def _load_torch(path: Path, file: Any) -> Any:
    """Return what torch.save wrote, if it is made of tensors and plain values."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old formats, and of TorchScript
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"{path} holds Python objects, which could run code when they are read, so it was not read; {SAVE}"
        ) from error
    except Exception as error:  # torch reports damaged files in many ways
        raise ModelError(f"{path} is damaged, or not a state_dict; {SAVE}") from error


def _check(path: Path, found: Any) -> dict[str, Tensor]:
    """Return named tensors; raise ModelError for anything else."""
    if isinstance(found, Tensor):
        found = {"params": found}
    if not isinstance(found, Mapping) or not found:
        raise ModelError(f"{path} holds no named tensors; {SAVE}")
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            inside = " (is the state_dict inside it?)" if isinstance(value, Mapping) else ""
            raise ModelError(f"{path} holds {name!r}, which is not a tensor{inside}; {SAVE}")
        if value.layout != torch.strided or value.is_quantized or value.device.type != "cpu":
            raise ModelError(f"{path} holds {name!r}, which is not a plain tensor; {SAVE}")
    return dict(found)
