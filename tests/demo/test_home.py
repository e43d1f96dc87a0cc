"""Where local servers keep addresses and secrets."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from fleetsieve_airflow.demo.home import USER, Home, free_ports, is_free, load_settings, password_file, settle


def made(root: Path) -> Home:
    home = Home(root=root)
    home.make()
    return home


def test_a_later_start_has_the_same_addresses_and_login(tmp_path: Path) -> None:
    home = made(tmp_path)
    first = settle(home, running=False)
    assert settle(home, running=False) == first == load_settings(home)


def test_ports_that_another_program_took_are_replaced_and_secrets_stay(tmp_path: Path) -> None:
    home = made(tmp_path)
    first = settle(home, running=False)
    with socket.create_server(("127.0.0.1", first.airflow_port)):
        second = settle(home, running=False)
    assert second.airflow_port != first.airflow_port
    assert second.password == first.password


def test_ports_that_our_own_servers_hold_are_kept(tmp_path: Path) -> None:
    home = made(tmp_path)
    first = settle(home, running=False)
    with socket.create_server(("127.0.0.1", first.airflow_port)):
        assert settle(home, running=True) == first


def test_every_installation_has_its_own_password(tmp_path: Path) -> None:
    passwords = {settle(made(tmp_path / name), running=False).password for name in ("a", "b")}
    assert len(passwords) == 2
    assert all(len(password) >= 12 for password in passwords)


def test_secrets_are_closed_to_other_users(tmp_path: Path) -> None:
    home = made(tmp_path / "home")
    settings = settle(home, running=False)
    assert json.loads(password_file(home).read_text()) == {USER: settings.password}
    for path in (password_file(home), home.root / "settings.json", home.root, home.airflow):
        assert path.stat().st_mode & 0o077 == 0, path


def test_free_ports_differ_and_are_free() -> None:
    ports = free_ports(3)
    assert len(set(ports)) == 3
    assert all(is_free(port) for port in ports)


def test_nothing_is_remembered_before_the_first_start(tmp_path: Path) -> None:
    assert load_settings(Home(root=tmp_path)) is None
