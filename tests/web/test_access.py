"""Who may look at the dashboard, and who may steer."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgtrickle.errors import UsageError
from pgtrickle.web.access import TOKEN, Access, Address, parse_address, read_token

SECRET = "0123456789abcdef-secret"
JSON = {"Content-Type": "application/json"}


def access(host: str = "127.0.0.1", token: str | None = SECRET, *names: str) -> Access:
    return Access(Address(host, 8080), token, names)


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080, True),
        ("8080", "127.0.0.1", 8080, True),
        ("localhost:1", "localhost", 1, True),
        ("[::1]:65535", "::1", 65535, True),
        ("127.9.9.9:80", "127.9.9.9", 80, True),
        ("0.0.0.0:8080", "0.0.0.0", 8080, False),  # noqa: S104
        ("[::]:8080", "::", 8080, False),
        ("10.0.0.7:8080", "10.0.0.7", 8080, False),
        ("localhost.example:8080", "localhost.example", 8080, False),
    ],
)
def test_addresses(text: str, host: str, port: int, loopback: bool) -> None:
    found = parse_address(text)
    assert (found.host, found.port, found.is_loopback) == (host, port, loopback)
    assert parse_address(str(found)) == found


@pytest.mark.parametrize("text", ["", "host", "host:", ":8080", "1.2.3.4:0", "1.2.3.4:65536", "::1:80", "http://x:80"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError, match="PT035"):
        parse_address(text)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "db.example"])  # noqa: S104
def test_beyond_this_machine_a_token_is_needed(host: str) -> None:
    with pytest.raises(UsageError, match="PT038") as refused:
        access(host, None)
    assert "--web-token-file" in str(refused.value.hint)
    assert access(host, SECRET).refused_data({}) is not None
    assert access("127.0.0.1", None).refused_data({}) is None


def test_where_the_token_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    assert read_token(None) is None
    file = tmp_path / "token"
    file.write_text(f"{SECRET}\n")
    assert read_token(file) == SECRET
    monkeypatch.setenv(TOKEN, "x" * 16)
    assert (read_token(None), read_token(file)) == ("x" * 16, SECRET)
    for wrong in ("short", "", "two\nlines of a token that is long", "with spaces in between", "ümlaut" * 5):
        file.write_text(wrong)
        with pytest.raises(UsageError, match="PT037"):
            read_token(file)
    with pytest.raises(UsageError, match="PT036"):
        read_token(tmp_path / "nothing")
    file.write_bytes(b"\xff" * 20)
    with pytest.raises(UsageError, match="PT036"):
        read_token(file)


def test_the_token_is_shown_nowhere() -> None:
    assert SECRET not in repr(access())


def authorized(value: str) -> dict[str, str]:
    return {"Authorization": value}


@pytest.mark.parametrize("value", [f"Bearer {SECRET}", f"bearer  {SECRET}"])
def test_the_token_opens(value: str) -> None:
    assert access().refused_data(authorized(value)) is None
    assert access().refused_change(authorized(value) | JSON) is None


@pytest.mark.parametrize("value", ["", "Bearer", "Bearer ", SECRET, f"Basic {SECRET}", f"Bearer {SECRET}x", "Bearer ü"])
def test_what_is_not_the_token_does_not(value: str) -> None:
    refused = access().refused_data(authorized(value))
    assert refused is not None
    assert refused.status == 401


def test_without_a_token_it_is_read_only() -> None:
    refused = access(token=None).refused_change(JSON)
    assert refused is not None
    assert (refused.status, "read-only" in refused.message) == (403, True)


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_a_form_changes_nothing(kind: str) -> None:
    """What a page elsewhere can send without being asked first."""
    refused = access().refused_change({"Authorization": f"Bearer {SECRET}", "Content-Type": kind})
    assert refused is not None
    assert refused.status == 415


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8080", "127.0.0.1", "localhost:8080", "LOCALHOST", "[::1]:8080", "10.1.2.3:99"]
)
def test_our_own_names(host: str) -> None:
    assert access().refused({"Host": host}) is None


@pytest.mark.parametrize(
    "host", [None, "", "evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.x"]
)
def test_other_names_are_refused(host: str | None) -> None:
    """A page whose name was made to lead to this address (DNS rebinding)."""
    refused = access().refused({} if host is None else {"Host": host})
    assert refused is not None
    assert refused.status == 403


def test_a_name_may_be_given() -> None:
    named = access("127.0.0.1", SECRET, "dash.example")
    assert named.refused({"Host": "Dash.Example"}) is None
    assert named.refused({"Host": "dash.example.evil"}) is not None


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9999", "http://localhost:8080"])
def test_pages_of_other_origins_are_refused(origin: str) -> None:
    refused = access().refused({"Host": "127.0.0.1:8080", "Origin": origin})
    assert refused is not None
    assert refused.status == 403
    assert access().refused({"Host": "127.0.0.1:8080", "Origin": "http://127.0.0.1:8080"}) is None


def test_a_link_elsewhere_may_lead_here_but_a_script_may_not_ask() -> None:
    far = {"Host": "127.0.0.1:8080", "Sec-Fetch-Site": "cross-site"}
    assert access().refused(far | {"Sec-Fetch-Mode": "navigate"}) is None
    assert access().refused(far | {"Sec-Fetch-Mode": "no-cors"}) is not None
