"""Redis URLs, scripts and reply classes, without a server."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis._parsers.base import BaseParser
from redis.exceptions import ConnectionError, RedisError

from cluster.errors import StartupError, StoreFull, StoreRefused
from cluster.store.outcomes import Meaning, error_text, failure, is_reply, is_write, meaning
from cluster.store.scripts import assemble
from cluster.store.topology import Node, parse


def reply(line: str) -> RedisError:
    """The exception redis-py makes of an error line."""
    parse_error: Callable[[str], RedisError] = BaseParser.parse_error
    return parse_error(line)


@pytest.mark.parametrize(
    ("url", "kind", "label", "nodes"),
    [
        ("redis://u:pw@h:1/2", "single", "redis://h:1", (Node("h", 1),)),
        ("valkey://h", "single", "redis://h:6379", (Node("h", 6379),)),
        ("rediss://h:1", "single", "rediss://h:1", (Node("h", 1),)),
        ("redis://[::1]:7", "single", "redis://::1:7", (Node("::1", 7),)),
        ("unix:///a/b%20c.sock?db=1", "single", "unix:///a/b c.sock", (Node("/a/b c.sock", 0),)),
        (
            "redis+sentinel://:pw@a,b:2/my%20m/3?sentinel_password=pw",
            "sentinel",
            "redis+sentinel://a:26379,b:2/my m",
            (Node("a", 26379), Node("b", 2)),
        ),
        (
            "valkeys+cluster://u:pw@a:1,b",
            "cluster",
            "rediss+cluster://a:1,b:6379",
            (Node("a", 1), Node("b", 6379)),
        ),
    ],
)
def test_urls(url: str, kind: str, label: str, nodes: tuple[Node, ...]) -> None:
    endpoint = parse(url)
    assert (endpoint.kind, endpoint.label, endpoint.nodes) == (kind, label, nodes)
    assert "pw" not in repr(endpoint)


def test_url_options_reach_the_connection() -> None:
    single = parse("redis://u:p%40w@h/5?socket_timeout=2")
    assert single.options == {"username": "u", "password": "p@w", "db": 5, "socket_timeout": 2.0}
    sentinel = parse("redis+sentinel://:pw@h/m/4?sentinel_username=su&sentinel_password=sp")
    assert sentinel.options == {"password": "pw", "db": 4}
    assert sentinel.sentinel_options == {"username": "su", "password": "sp"}


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://pw@h",
        "redis:/h",
        "redis://:pw@h:port/0",
        "redis+sentinel://pw@h",
        "redis+cluster://:pw@h/3",
        "unix://",
        "redis://h?db=pw",
        "redis+other://h",
    ],
)
def test_bad_urls_are_refused_in_one_line_without_secrets(url: str) -> None:
    with pytest.raises(StartupError) as caught:
        parse(url)
    assert "\n" not in str(caught.value)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("NOSCRIPT No matching script.", Meaning.UNKNOWN_SCRIPT),
        ("MOVED 3999 127.0.0.1:6381", Meaning.MOVED),
        ("ASK 3999 127.0.0.1:6381", Meaning.ASK),
        ("TRYAGAIN Multiple keys request during rehashing of slot", Meaning.RETRY),
        ("CLUSTERDOWN Hash slot not served", Meaning.RECONNECT),
        ("LOADING Redis is loading the dataset in memory", Meaning.RECONNECT),
        ("MASTERDOWN Link with MASTER is down", Meaning.RECONNECT),
        ("READONLY You can't write against a read only replica.", Meaning.RECONNECT),
        ("BUSY Redis is busy running a script.", Meaning.RETRY),
        ("NOREPLICAS Not enough good replicas to write.", Meaning.RETRY),
        ("MISCONF Errors writing to the AOF file: No space left on device", Meaning.RETRY),
        ("OOM command not allowed when used memory > 'maxmemory'.", Meaning.FULL),
        ("WRONGTYPE Operation against a key", Meaning.FAILED),
        ("ERR unknown command 'X'", Meaning.FAILED),
        ("NOPERM User app has no permissions", Meaning.FAILED),
        ("NOAUTH Authentication required.", Meaning.FAILED),
        ("WRONGPASS invalid username-password pair", Meaning.FAILED),
    ],
)
def test_every_reply_class(line: str, expected: Meaning) -> None:
    error = reply(line)
    assert is_reply(error)
    assert meaning(error) is expected
    if expected not in (Meaning.MOVED, Meaning.ASK):
        assert error_text(error) == line


def test_a_broken_connection_is_no_reply() -> None:
    assert not is_reply(ConnectionError("Connection closed by server."))
    assert not is_reply(reply("ERR max number of clients reached"))


def test_failures_keep_the_servers_words() -> None:
    assert isinstance(failure(reply("OOM command not allowed")), StoreFull)
    refused = failure(reply("NOPERM no permissions"))
    assert isinstance(refused, StoreRefused)
    assert str(refused) == "NOPERM no permissions"


def test_unknown_commands_count_as_writes() -> None:
    assert not is_write("hgetall")
    assert is_write("SET")
    assert is_write("SOMETHING.NEW")


def test_includes_are_put_in_front_once_and_change_the_address() -> None:
    library = {"a": "-- include: b\nlocal a", "b": "local b"}
    script = assemble("x", "-- include: a\n-- include: b\nreturn 1", library)
    assert script.source.decode().splitlines() == [
        "local b",
        "-- include: b",
        "local a",
        "-- include: a",
        "-- include: b",
        "return 1",
    ]
    changed = assemble("x", "-- include: a\n-- include: b\nreturn 1", library | {"b": "local bb"})
    assert changed.sha != script.sha


def test_an_unknown_include_is_an_error() -> None:
    with pytest.raises(KeyError):
        assemble("x", "-- include: none\nreturn 1", {})
