"""Addresses of services: HOST:PORT, where HOST is a name, an IPv4 address, or an IPv6 address in brackets."""

from __future__ import annotations

import ipaddress

MAX_PORT = 65535


def split_address(address: str) -> tuple[str, int]:
    """Host, without brackets, and port. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not bare or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= MAX_PORT:
        raise ValueError(f"{address!r} is not HOST:PORT")
    if bare == host and ":" in host:
        raise ValueError(f"{address!r}: an IPv6 address needs brackets, as in [::1]:7072")
    return bare, int(port)


def join_address(host: str, port: int) -> str:
    """The inverse of split_address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_literal(address: str) -> bool:
    """Whether HOST is an IP address, not a name."""
    try:
        ipaddress.ip_address(split_address(address)[0])
    except ValueError:
        return False
    return True
