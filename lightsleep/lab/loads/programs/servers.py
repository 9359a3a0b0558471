# SPDX-License-Identifier: GPL-2.0-only
"""The servers, as data: how each is started, how it is seen to be ready, what loads it.

Server and generator run in the same guest and talk over the loopback interface or a Unix socket. A
generator with one connection waits for each answer before it asks again, so that every request
wakes the server and every answer wakes the generator. With many connections both are always busy.

All servers run side by side. Their settings are the defaults, except what keeps them small: one
worker, little memory, nothing written to disk. A server without load stays idle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lightsleep.lab.loads.programs import outputs
from lightsleep.lab.loads.programs.outputs import Outcome

ONE, MANY = 1, 50
"""Connections of the two loads of each program."""

PASSWD = """\
root:x:0:0::/root:/bin/sh
nobody:x:65534:65534::/:/bin/sh
postgres:x:100:100::/run/postgresql:/bin/sh
"""
"""The users that servers ask for. The root of a guest has none: no package's script has run."""
GROUP = "root:x:0:\nnogroup:x:65534:\npostgres:x:100:\n"


@dataclass(frozen=True)
class Load:
    """One run of a generator."""

    argv: tuple[str, ...]
    requests: int | None = None
    """How many it makes, where it does not say so itself."""
    stdin: str = ""
    read: Callable[[str], Outcome] | None = None
    """Reads what the generator prints; None: it prints nothing, and its whole run is timed."""
    percentiles: str = ""
    """How exactly the generator tells p50 and p99 of a request; empty: it does not."""


@dataclass(frozen=True)
class Program:
    """A server and its load generator."""

    name: str
    title: str
    start: tuple[str, ...]
    """Starts the server; returns at once, or when it is ready."""
    probe: tuple[str, ...]
    """Succeeds as soon as the server answers."""
    loads: Mapping[int, Load]
    """By connections."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files that the server wants, by path."""
    prepare: tuple[str, ...] = ()
    """Run before ``start``."""
    fill: tuple[str, ...] = ()
    """Run once the server answers: puts into it what the load asks for."""


def listens(port: int) -> tuple[str, ...]:
    """Return a command that succeeds where somebody accepts connections at a TCP ``port``."""
    return ("bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port}")


REDIS_PORT, NGINX_PORT, MEMCACHED_PORT, DNS_PORT, MQTT_PORT = 6379, 8080, 11211, 5353, 1883


REDIS_STEPS = "redis-benchmark rounds it up in steps of 8 us, from 16 ms on in larger ones"
WRK_STEPS = "wrk tells it in steps of 10 us from 1 ms on"
DNSPERF_STEPS = "the middle of a bucket of dnsperf's, which is up to 3.2 % of that time wide"


def _redis(connections: int, requests: int) -> Load:
    argv = ("redis-benchmark", "--csv", "-t", "get", "-c", str(connections), "-n", str(requests))
    return Load(argv, requests, read=outputs.redis_benchmark, percentiles=REDIS_STEPS)


REDIS = Program(
    name="redis",
    title="Redis",
    start=("redis-server", "--save", "", "--daemonize", "yes", "--port", str(REDIS_PORT)),
    probe=("redis-cli", "ping"),
    loads={ONE: _redis(ONE, 3000), MANY: _redis(MANY, 15000)},
)


def _wrk(connections: int) -> Load:
    url = f"http://127.0.0.1:{NGINX_PORT}/"
    argv = ("wrk", "-t1", f"-c{connections}", "-d1s", "--latency", url)
    return Load(argv, read=outputs.wrk, percentiles=WRK_STEPS)


NGINX = Program(
    name="nginx",
    title="nginx",
    files={
        "/etc/nginx/lab.conf": f"""\
user root;
worker_processes 1;
pid /run/nginx.pid;
error_log /run/nginx.log;
events {{ worker_connections 256; }}
http {{
    access_log off;
    server {{
        listen 127.0.0.1:{NGINX_PORT};
        location / {{ return 200 "hello\\n"; }}
    }}
}}
""",
    },
    prepare=("mkdir", "-p", "/var/lib/nginx"),
    start=("nginx", "-c", "/etc/nginx/lab.conf", "-e", "/run/nginx.log"),
    probe=listens(NGINX_PORT),
    loads={ONE: _wrk(ONE), MANY: _wrk(MANY)},
)


def _memaslap(connections: int, requests: int) -> Load:
    # -w: values to choose from, for each connection; they are stored before the clock starts.
    server = f"127.0.0.1:{MEMCACHED_PORT}"
    argv = ("memcaslap", "-s", server, "-T", "1", "-w", "1k", "-X", "100")
    return Load((*argv, "-c", str(connections), "-x", str(requests)), read=outputs.memaslap)


MEMCACHED = Program(
    name="memcached",
    title="memcached",
    start=("memcached", "-d", "-u", "root", "-l", "127.0.0.1", "-p", str(MEMCACHED_PORT)),
    probe=listens(MEMCACHED_PORT),
    loads={ONE: _memaslap(ONE, 3000), MANY: _memaslap(MANY, 12000)},
)

POSTGRES_BIN = "/usr/lib/postgresql/17/bin"
POSTGRES = "/run/postgresql"
_AS_POSTGRES = ("setpriv", "--reuid=100", "--regid=100", "--clear-groups")
_POSTGRES_OPTIONS = (
    f"-c listen_addresses= -c unix_socket_directories={POSTGRES} -c shared_buffers=32MB "
    "-c fsync=off"
)
_PGBENCH = (f"{POSTGRES_BIN}/pgbench", "-h", POSTGRES, "-U", "postgres")


def _pgbench(connections: int, *length: str) -> Load:
    argv = (*_PGBENCH, "-n", "-S", "-c", str(connections), *length, "postgres")
    return Load(argv, read=outputs.pgbench)


POSTGRESQL = Program(
    name="postgresql",
    title="PostgreSQL",
    prepare=(
        *("sh", "-c"),
        f"mkdir -p {POSTGRES} && chown 100:100 {POSTGRES} && {' '.join(_AS_POSTGRES)} "
        f"{POSTGRES_BIN}/initdb -D {POSTGRES}/data --no-sync -A trust",
    ),
    start=(
        *_AS_POSTGRES,
        *(f"{POSTGRES_BIN}/pg_ctl", "-w", "-D", f"{POSTGRES}/data", "-l", f"{POSTGRES}/log"),
        *("-o", _POSTGRES_OPTIONS, "start"),
    ),
    probe=(f"{POSTGRES_BIN}/pg_isready", "-h", POSTGRES),
    fill=(*_PGBENCH, "-i", "-q", "postgres"),
    # Many connections take so long to make that a run of a given time would end before.
    loads={ONE: _pgbench(ONE, "-T", "1"), MANY: _pgbench(MANY, "-t", "40")},
)


DNS_NAME, DNS_ADDRESS = "www.example", "192.0.2.1"


def _dnsperf(clients: int, *length: str) -> Load:
    # -t: a datagram that is lost holds its client up for so long, and counts in the rate.
    argv = ("dnsperf", "-s", "127.0.0.1", "-p", str(DNS_PORT), "-d", "/etc/unbound/queries")
    options = ("-O", "latency-histogram", "-c", str(clients), "-q", str(clients), "-t", "0.5")
    return Load((*argv, *options, *length), read=outputs.dnsperf, percentiles=DNSPERF_STEPS)


def _kdig(queries: int) -> Load:
    # dnsperf is no load of one request at a time: the thread that receives wakes the one that
    # sends before it counts the answer, so that a query is held back until its timeout.
    asks = f"kdig @127.0.0.1 -p {DNS_PORT} +short $(yes {DNS_NAME} | head -n {queries})"
    answered = f'test "$(grep -cx {DNS_ADDRESS} /run/answers)" = {queries}'
    return Load(("bash", "-c", f"{asks} > /run/answers && {answered}"), queries)


UNBOUND = Program(
    name="unbound",
    title="Unbound, a DNS server",
    files={
        "/etc/unbound/lab.conf": f"""\
server:
    interface: 127.0.0.1
    port: {DNS_PORT}
    access-control: 127.0.0.0/8 allow
    module-config: "iterator"
    local-zone: "example." static
    local-data: "{DNS_NAME}. A {DNS_ADDRESS}"
    username: ""
    chroot: ""
    directory: "/run"
    pidfile: "/run/unbound.pid"
    use-syslog: no
    logfile: "/run/unbound.log"
remote-control:
    control-enable: no
""",
        "/etc/unbound/queries": f"{DNS_NAME} A\n",
    },
    start=("unbound", "-c", "/etc/unbound/lab.conf"),
    probe=_kdig(1).argv,
    loads={ONE: _kdig(2000), MANY: _dnsperf(MANY, "-l", "1")},
)


# At quality of service 1 the broker acknowledges each message.
_MOSQUITTO_PUB = ("mosquitto_pub", "-h", "127.0.0.1", "-p", str(MQTT_PORT), "--nodelay", "-q", "1")


def _one_by_one(messages: int) -> Load:
    return Load((*_MOSQUITTO_PUB, "-t", "lab", "-m", "x", "--repeat", str(messages)), messages)


def _in_flight(messages: int) -> Load:
    return Load((*_MOSQUITTO_PUB, "-t", "lab", "-l", "-M", str(MANY)), messages, "x\n" * messages)


MOSQUITTO = Program(
    name="mosquitto",
    title="Mosquitto, a message broker",
    files={
        "/etc/mosquitto/lab.conf": f"""\
listener {MQTT_PORT} 127.0.0.1
allow_anonymous true
persistence false
set_tcp_nodelay true
log_dest none
user root
""",
    },
    start=("mosquitto", "-d", "-c", "/etc/mosquitto/lab.conf"),
    probe=listens(MQTT_PORT),
    loads={ONE: _one_by_one(1000), MANY: _in_flight(5000)},
)

PROGRAMS = (REDIS, NGINX, MEMCACHED, POSTGRESQL, UNBOUND, MOSQUITTO)
