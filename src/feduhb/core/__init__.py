"""Types, aggregation rules, flat parameters, seeds, checks and plug-ins. Nothing here reads files or the clock."""

from typing import TYPE_CHECKING

from feduhb.core.lazy import import_lazily

if TYPE_CHECKING:
    from feduhb.core.checks import check_positive as check_positive
    from feduhb.core.checks import check_whole as check_whole
    from feduhb.core.flat import flatten as flatten
    from feduhb.core.flat import with_params as with_params
    from feduhb.core.types import ClientId as ClientId
    from feduhb.core.types import Engine as Engine

__getattr__, __dir__, __all__ = import_lazily(
    __name__,
    {
        "checks": ["check_positive", "check_whole"],
        "flat": ["flatten", "with_params"],
        "types": ["ClientId", "Engine"],
    },
)
