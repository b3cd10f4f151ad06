"""Failures and invalid input produce one clear sentence each, with the remedy. Nothing is lost."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from headrace.embedded import EmbeddedPostgres
from headrace.embedded.errors import last_error_line, os_errors_explained, output_error
from headrace.embedded.paths import find_server_dir
from headrace.model.errors import ConfigurationError, EmbeddedPostgresError

from .conftest import ask

HOME = Path("/some/home")


@pytest.fixture
def taken_port():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def test_a_port_taken(pg, taken_port):
    with pytest.raises(EmbeddedPostgresError, match=f"Port {taken_port} .* used by another program.*HEADRACE_PG_PORT"):
        EmbeddedPostgres(pg.data_dir, port=taken_port).acquire()
    assert pg.status().users == ()
    with pg.acquire() as handle:
        assert ask(handle.url, "select 1") == 1


def test_a_port_asked_for_too_late(pg, taken_port):
    with (
        pg.acquire(),
        pytest.raises(EmbeddedPostgresError, match=f"already runs without a TCP port.*{taken_port}"),
    ):
        EmbeddedPostgres(pg.data_dir, port=taken_port).acquire()


@pytest.mark.parametrize("port", ["http", "0", "65536", "-1", "٣"])
def test_a_port_that_cannot_be_one(monkeypatch, tmp_path, port):
    monkeypatch.setenv("HEADRACE_PG_PORT", port)
    with pytest.raises(ConfigurationError, match=r"from 1 to 65535"):
        EmbeddedPostgres(tmp_path)


def test_a_data_directory_below_a_file(tmp_path):
    (tmp_path / "file").touch()
    below = EmbeddedPostgres(tmp_path / "file" / "postgres")
    with pytest.raises(EmbeddedPostgresError, match=r"can't be used.*HEADRACE_DATA"):
        below.acquire()
    assert not below.status().running


def test_a_data_directory_that_the_system_does_not_let_us_make():
    with pytest.raises(EmbeddedPostgresError, match=r"can't be used.*HEADRACE_DATA"):
        EmbeddedPostgres("/proc/headrace").acquire()


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_read_only_data_directory(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(EmbeddedPostgresError, match=r"can't be used.*HEADRACE_DATA"):
        EmbeddedPostgres(tmp_path / "postgres").acquire()


def test_data_of_another_version(pg, monkeypatch):
    version = find_server_dir(pg.data_dir).cluster / "PG_VERSION"
    rightly = version.read_text()
    version.write_text("9\n")
    try:
        with pytest.raises(EmbeddedPostgresError, match=r"made by PostgreSQL 9, .*HEADRACE_PG_BIN"):
            pg.acquire()
    finally:
        version.write_text(rightly)


def test_a_directory_without_programs(pg, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_PG_BIN", str(tmp_path))
    with pytest.raises(EmbeddedPostgresError, match=r"HEADRACE_PG_BIN is .* Set it to the directory"):
        pg.acquire()


def test_a_setting_that_postgres_does_not_know(pg):
    with pytest.raises(EmbeddedPostgresError, match=r"could not start: .*wrok_mem.*server.log"):
        EmbeddedPostgres(pg.data_dir, settings={"wrok_mem": "1MB"}).acquire()
    assert not pg.status().running


@pytest.mark.parametrize("settings", [{"work mem": "1MB"}, {"work_mem": "1MB\nfsync = off"}])
def test_a_setting_that_cannot_be_written(pg, settings):
    with pytest.raises(ConfigurationError, match=r"setting"):
        EmbeddedPostgres(pg.data_dir, settings=settings).acquire()


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (errno.ENOSPC, "The disk of /some/home is full.*Free some space"),
        (errno.EDQUOT, "The disk of /some/home is full.*Free some space"),
        (errno.EROFS, "/some/home can't be used .*HEADRACE_DATA"),
        (errno.EACCES, "/some/home can't be used .*Make it writable"),
    ],
)
def test_errors_of_the_file_system(code, sentence):
    with pytest.raises(EmbeddedPostgresError, match=sentence), os_errors_explained(HOME):
        raise OSError(code, os.strerror(code), str(HOME))


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        ('FATAL:  could not write lock file "x": No space left on device', "disk of /some/home is full"),
        ('initdb: error: could not create directory "x": Read-only file system', "read-only file system"),
        ("FATAL:  pre-existing shared memory block (key 1) is still in use", "of a killed Postgres still run"),
        ("LOG:  one\nFATAL:  two\nLOG:  three", "could not start: two."),
        ("", "no reason is given"),
    ],
)
def test_errors_of_postgres(output, sentence):
    assert sentence in output_error(output, home=HOME, port=None, action="start")


def test_the_last_words_are_the_gravest():
    assert last_error_line("x [1] FATAL:  bad luck.\nx [1] LOG:  database system is shut down\n") == "bad luck"
    assert last_error_line("nothing grave\n\n") == "nothing grave"
