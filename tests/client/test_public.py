"""What `tandem` exports, and that it costs those nothing who do not ask."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tandem
import tandem.client
from tandem.client.channels import channel_options
from tandem.config import RpcConfig
from tandem.rpc.link import client_options

from .fakes import Coordinator, serving


def test_all_is_exactly_what_is_exported() -> None:
    star: dict[str, object] = {}
    exec("from tandem import *", star)
    del star["__builtins__"]
    assert sorted(star) == tandem.__all__ == tandem.client.__all__
    assert all(value is getattr(tandem.client, name) for name, value in star.items())
    assert set(tandem.__all__) <= set(dir(tandem))


def test_every_public_value_of_the_client_is_in_all() -> None:
    """No error and no result can reach a caller without a name to catch or annotate it by."""
    from tandem.client import errors, request, results

    for module in (errors, results):
        own = {name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
        assert {name for name in own if name[0].isupper()} <= set(tandem.__all__)
    assert {request.Message.__name__, request.SamplingParams.__name__} <= set(tandem.__all__)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="Klient"):
        tandem.Klient  # noqa: B018


def run(code: str, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *args], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr, done.stderr
    return done.stdout.strip()


def test_importing_tandem_is_light() -> None:
    heavy = {"asyncio", "grpc", "google.protobuf", "numpy", "pydantic", "torch", "transformers", "tandem.client"}
    assert run(f"import sys, tandem; print({heavy!r} & set(sys.modules))") == "set()"


def test_importing_the_client_is_light_enough() -> None:
    heavy = {"numpy", "pydantic", "torch", "transformers", "yaml"}
    assert run(f"import sys; from tandem import Client; print({heavy!r} & set(sys.modules))") == "set()"


def test_the_services_do_not_import_the_client() -> None:
    """Of a service only what its door needs is loaded here, lest this test loads torch."""
    assert run("import sys, coordinator.door; print('tandem.client' in sys.modules)") == "False"


def test_a_client_that_is_never_closed_lets_the_interpreter_end() -> None:
    code = """
import sys, tandem
client = tandem.Client(sys.argv[1])
chunks = client.stream("Why?")
print(next(chunks).text)
"""
    with serving(Coordinator()) as address:
        assert run(code, address) == "The"


def test_channels_are_kept_alive_as_between_services() -> None:
    ours = dict(channel_options())
    assert dict(client_options(RpcConfig())).items() <= ours.items()
    assert dict(channel_options([("grpc.keepalive_time_ms", 1)]))["grpc.keepalive_time_ms"] == 1
