"""Addresses, one by one and in lists, from files, environment and flags."""

from __future__ import annotations

import pytest

from tandem.addresses import is_literal, join_address, split_address
from tandem.config import load_config
from tandem.errors import ConfigError

GOOD = ["127.0.0.1:7072", "[::1]:7072", "targets.tandem.svc.cluster.local:1", "localhost:65535"]
BAD = ["", ":7072", "host", "host:", "host:0", "host:65536", "host:7 2", "host:-1", "::1:7072", "[]:7072", "host:٣"]


@pytest.mark.parametrize("address", GOOD)
def test_split_and_join_are_inverse(address: str) -> None:
    assert join_address(*split_address(address)) == address


@pytest.mark.parametrize("address", BAD)
def test_what_is_no_address_is_refused_and_the_field_named(address: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|brackets"):
        split_address(address)
    with pytest.raises(ConfigError, match=r"coordinator\.targets"):
        load_config(None, {"coordinator": {"targets": [address]}})


def test_only_ip_addresses_are_literal() -> None:
    assert [is_literal(address) for address in GOOD] == [True, True, False, False]


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:1", ("a:1",)),
        ("a:1,b:2", ("a:1", "b:2")),
        (" a:1 , b:2, ", ("a:1", "b:2")),
        ('["a:1", "b:2"]', ("a:1", "b:2")),
        ("[::1]:1,[::2]:2", ("[::1]:1", "[::2]:2")),
        ("[]", ()),
        ("", ()),
    ],
)
def test_lists_are_read_alike_from_the_environment_and_from_flags(
    text: str, addresses: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_config(None, {"coordinator": {"drafts": text}}).coordinator.drafts == addresses
    monkeypatch.setenv("TANDEM_COORDINATOR__DRAFTS", text)
    assert load_config().coordinator.drafts == addresses


@pytest.mark.parametrize("text", ["", "[]", ","])
def test_a_coordinator_without_targets_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"coordinator\.targets"):
        load_config(None, {"coordinator": {"targets": text}})
