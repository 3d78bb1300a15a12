"""Reads `redis.url`: one server, a primary that Sentinels name, or a Cluster.

    redis://  rediss://  unix://
    redis+sentinel://user:password@h1:26379,h2:26379/mymaster/0?sentinel_password=...
    redis+cluster://user:password@h1:7000,h2:7000

`rediss` in place of `redis` means TLS on every connection. What stands behind `?` are redis-py's own options
for a connection (`ssl_ca_certs=/etc/ca.pem`). User and password are those of the servers; the Sentinels' own,
if they have any, are `sentinel_username` and `sentinel_password`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from redis.asyncio.connection import parse_url

Topology = Literal["server", "sentinel", "cluster"]
Host = tuple[str, int]

_ONE: Final = ("redis", "rediss", "unix")
_MANY: Final[Mapping[str, Topology]] = {
    "redis+sentinel": "sentinel",
    "rediss+sentinel": "sentinel",
    "redis+cluster": "cluster",
    "rediss+cluster": "cluster",
}
_PORTS: Final[Mapping[Topology, int]] = {"server": 6379, "sentinel": 26379, "cluster": 6379}
_EXAMPLES: Final[Mapping[Topology, str]] = {
    "server": "redis://127.0.0.1:6379/0",
    "sentinel": "redis+sentinel://h1:26379,h2:26379/mymaster/0",
    "cluster": "redis+cluster://h1:7000,h2:7000",
}
_SENTINELS_OWN: Final = "sentinel_"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a Redis is. `hosts` are the Sentinels, or nodes of the Cluster; empty: a unix socket.

    `options` are keyword arguments for redis-py's connections to servers, `sentinel_options` for those to
    Sentinels. `service` is what the Sentinels call the primary.
    """

    topology: Topology
    hosts: tuple[Host, ...]
    options: Mapping[str, Any]
    sentinel_options: Mapping[str, Any]
    service: str = ""

    @property
    def tls(self) -> bool:
        """Whether every connection is encrypted."""
        return "ssl" in getattr(self.options.get("connection_class"), "__name__", "").lower()

    def __str__(self) -> str:
        """Return where it leads, without user and password."""
        if not self.hosts:
            return str(self.options["path"])
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        named = {"server": "", "sentinel": f"{self.service} by the sentinels ", "cluster": "the cluster "}
        return named[self.topology] + hosts


def read_address(url: str) -> Address:
    """Return what `url` says; ValueError with the cure when it says nothing usable."""
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    if scheme in _MANY:
        return _many(_MANY[scheme], scheme.partition("+")[0], url.partition("://")[2])
    if scheme not in _ONE:
        raise ValueError(
            "no redis:// rediss:// unix:// redis+sentinel:// or redis+cluster:// address; "
            f"write for example {_EXAMPLES['server']}"
        )
    if scheme == "unix":
        host, _, path = _parts(url)
        if host or not path.startswith("/"):
            raise ValueError("the socket's path must be absolute; write for example unix:///run/redis.sock")
        return Address("server", (), parse_url(url), {})
    host, port = _host(url, "server")
    _check_database(_parts(url)[2].strip("/"))
    return Address("server", ((host, port),), parse_url(url), {})


def _many(topology: Topology, scheme: str, rest: str) -> Address:
    place, _, query = rest.partition("?")
    place, _, path = place.partition("/")
    user, _, hosts = place.rpartition("@")
    found = tuple(_host(f"{scheme}://{host}", topology) for host in hosts.split(","))
    service, _, database = path.strip("/").partition("/") if topology == "sentinel" else ("", "", path)
    if topology == "sentinel" and not service:
        raise ValueError(f"the name of the primary is missing; write for example {_EXAMPLES[topology]}")
    _check_database(database.strip("/"))
    if topology == "cluster" and database.strip("/") not in ("", "0"):
        raise ValueError("a cluster has no database but 0; leave it off")
    # redis-py reads the rest as it reads the address of one server.
    login = f"{user}@" if user else ""
    options = dict(parse_url(f"{scheme}://{login}host/{database.strip('/') or 0}?{query}"))
    del options["host"]
    own = {name: options.pop(name) for name in list(options) if name.startswith(_SENTINELS_OWN)}
    # Who calls the Sentinels, and in which way, is the same for all of them.
    shared = {name: value for name, value in options.items() if name.startswith("ssl_")}
    shared |= {name.removeprefix(_SENTINELS_OWN): value for name, value in own.items()}
    return Address(topology, found, options, shared, service)


def _host(url: str, topology: Topology) -> Host:
    host, port, _ = _parts(url)
    if not host:
        raise ValueError(f"the host is missing; write for example {_EXAMPLES[topology]}")
    if port == 0:
        raise ValueError(f"port 0 cannot be connected to; write for example {_EXAMPLES[topology]}")
    return host, port or _PORTS[topology]


def _check_database(database: str) -> None:
    if database and not (database.isascii() and database.isdigit()):
        raise ValueError(f"the database after the port must be a number, not {database[:32]!r}")


def _parts(url: str) -> tuple[str, int | None, str]:
    try:
        parts = urlsplit(url)
        return parts.hostname or "", parts.port, parts.path
    except ValueError as error:
        raise ValueError(f"no address: {str(error)[:100]}") from None
