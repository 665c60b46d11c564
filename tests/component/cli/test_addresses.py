from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from pdcluster_cli.errors import PortTakenError
from pdcluster_cli.exit_codes import ExitCode
from pdcluster_cli.up.addresses import WantedPort, free_address, require_free


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.2", 0))
        listening.listen(1)
        yield listening


def wanted(port: int, host: str | None = "127.0.0.2", field: str = "--port") -> WantedPort:
    return WantedPort(field=field, number=port, purpose="clients", host=host)


def test_a_free_port_is_fine(free_port: int) -> None:
    require_free((wanted(free_port), wanted(free_port, None)), num_engines=4)


def test_a_taken_port_is_an_error_with_purpose_and_remedy(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    with pytest.raises(PortTakenError) as caught:
        require_free((wanted(port),), num_engines=1)
    assert str(caught.value) == (
        f"--port: {port}: another program listens there at 127.0.0.2; choose another for clients"
    )
    assert caught.value.exit_code is ExitCode.WRONG_USE


def test_all_that_is_taken_is_told_at_once(listener: socket.socket, free_port: int) -> None:
    port = listener.getsockname()[1]
    with pytest.raises(PortTakenError) as caught:
        require_free(
            (wanted(port), wanted(free_port), wanted(port, field="--admin-port")), num_engines=1
        )
    first, *told = str(caught.value).splitlines()
    assert first == "several ports cannot be used:"
    assert [line.split(":")[0] for line in told] == ["  --port", "  --admin-port"]
    assert "--port has it already" in told[1]


def test_a_listener_that_shares_its_port_counts_too() -> None:
    with socket.socket() as sharing:
        sharing.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sharing.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sharing.bind(("127.0.0.2", 0))
        sharing.listen(1)
        with pytest.raises(PortTakenError):
            require_free((wanted(sharing.getsockname()[1]),), num_engines=1)


def test_an_address_of_another_machine_is_an_error() -> None:
    with pytest.raises(PortTakenError, match="no such address"):
        require_free((wanted(5000, "192.0.2.1"),), num_engines=1)


def test_the_engines_need_only_as_many_addresses_as_there_are_engines(
    listener: socket.socket,
) -> None:
    port = listener.getsockname()[1]
    require_free((wanted(port, None),), num_engines=252)
    with pytest.raises(PortTakenError, match="fewer than 253 addresses from"):
        require_free((wanted(port, None),), num_engines=253)


def test_addresses_begin_at_2_and_skip_those_that_are_ours(free_port: int) -> None:
    assert free_address((), ports=(free_port,)) == "127.0.0.2"
    taken = ("127.0.0.2", "127.0.0.3", "127.0.0.1")
    assert free_address(taken, ports=(free_port,)) == "127.0.0.4"


def test_an_address_on_which_somebody_listens_is_skipped(
    listener: socket.socket, free_port: int
) -> None:
    port = listener.getsockname()[1]
    assert free_address((), ports=(free_port, port)) == "127.0.0.3"


def test_a_port_that_is_taken_everywhere_is_an_error() -> None:
    with socket.socket() as everywhere:
        everywhere.bind(("0.0.0.0", 0))
        everywhere.listen(1)
        with pytest.raises(PortTakenError, match=r"spec\.engine\.port"):
            free_address((), ports=(everywhere.getsockname()[1],))
