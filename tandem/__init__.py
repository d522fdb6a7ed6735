"""Tandem: disaggregated speculative decoding.

What a program that asks a coordinator needs is here by name: all that `tandem.client` exports. It is loaded when first
named: the services import this package too, and have no use for it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tandem.client import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if name != "__all__" and name.startswith("_"):  # what the interpreter looks for
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import tandem.client

    if name not in ("__all__", *tandem.client.__all__):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(tandem.client, name)


def __dir__() -> list[str]:
    import tandem.client

    return sorted({*globals(), *tandem.client.__all__})
