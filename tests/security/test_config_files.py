"""Files that another user of the machine has put where Headrace looks for its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.app.settings import read
from headrace.cli.connection import contexts
from headrace.embedded.paths import default_data_dir
from headrace.model.errors import ConfigurationError, EmbeddedPostgresError

OTHER_USER = 54321
CHOSEN = "[tool.headrace]\ndatabase = 'postgresql://evil.example/x'\n"

GiveAway = Callable[..., None]


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> GiveAway:
    """Let a path belong to another user. Without root's rights, all paths but those of root do so."""

    def give_away(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, OTHER_USER, OTHER_USER, follow_symlinks=False)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: OTHER_USER)

    return give_away


@pytest.fixture
def below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory, two levels below where another user can write."""
    below = tmp_path / "mine/service"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    for name in ("HEADRACE_DATA", "SUDO_UID", "HEADRACE_SAFE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    return below


def _by_owner(file: Path, give_away: GiveAway) -> None:
    give_away(file)


def _by_mode(file: Path, give_away: GiveAway) -> None:
    file.chmod(0o666)


def _by_link(file: Path, give_away: GiveAway) -> None:
    real = file.rename(file.with_name("elsewhere.toml"))
    file.symlink_to(real)
    give_away(file)


@pytest.mark.parametrize("attack", [_by_owner, _by_mode, _by_link])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_project_file_of_another_user_chooses_no_database(
    below: Path, give_away: GiveAway, attack: Callable[[Path, GiveAway], None], place: int
) -> None:
    file = [below, *below.parents][place] / "pyproject.toml"
    file.write_text(CHOSEN)
    assert read(environment={}).database == "postgresql://evil.example/x"
    attack(file, give_away)
    for call in (lambda: read(environment={}), default_data_dir):
        with pytest.raises(ConfigurationError, match="so it is not used") as refused:
            call()
        assert str(file) in str(refused.value)


@pytest.mark.parametrize("text", ["[tool.other]\nx = 1\n", "no TOML {", "tool = 5", "\0", "[tool]\nheadrac = 1\n"])
def test_one_without_settings_of_headrace_is_as_if_it_were_not_there(
    below: Path, tmp_path: Path, give_away: GiveAway, text: str
) -> None:
    own = tmp_path / "pyproject.toml"
    own.write_text("[tool.headrace]\nprocesses = 7\n")
    nearer = below / "pyproject.toml"
    nearer.write_text(text)
    nearer.chmod(0o666)
    assert read(environment={}).processes == 7
    assert default_data_dir() == tmp_path / ".headrace/postgres"


def test_a_directory_can_be_named_as_safe_and_the_caller_of_sudo_is_trusted(
    below: Path, monkeypatch: pytest.MonkeyPatch, give_away: GiveAway
) -> None:
    (below / "pyproject.toml").write_text(CHOSEN)
    give_away(below / "pyproject.toml")
    for named in (str(below), f"/nowhere:{below}/../service"):
        assert read(environment={"HEADRACE_SAFE_DIRECTORY": named}).database is not None
    for named in ("", ":", "/", str(below.parent), "*"):
        with pytest.raises(ConfigurationError, match="HEADRACE_SAFE_DIRECTORY"):
            read(environment={"HEADRACE_SAFE_DIRECTORY": named})
    if os.geteuid() == 0:
        assert read(environment={"SUDO_UID": str(OTHER_USER)}).database is not None
        monkeypatch.setattr(os, "geteuid", lambda: OTHER_USER + 1)
    with pytest.raises(ConfigurationError):  # only root's environment is from sudo
        read(environment={"SUDO_UID": str((below / "pyproject.toml").stat().st_uid)})


def test_data_of_the_embedded_postgres_that_another_user_has_made_are_not_used(
    below: Path, give_away: GiveAway
) -> None:
    (below / "pyproject.toml").write_text("")
    assert default_data_dir() == below / ".headrace/postgres"
    (below / ".headrace").mkdir()
    assert default_data_dir() == below / ".headrace/postgres"
    (below / ".headrace").chmod(0o777)
    with pytest.raises(EmbeddedPostgresError, match="HEADRACE_DATA"):
        default_data_dir()
    (below / ".headrace").chmod(0o755)
    if os.geteuid() == 0:
        os.chown(below / ".headrace", OTHER_USER, OTHER_USER)
        with pytest.raises(EmbeddedPostgresError, match="HEADRACE_DATA"):
            default_data_dir()


@pytest.mark.parametrize("attack", [_by_owner, _by_mode, _by_link])
def test_contexts_of_another_user_are_refused(
    tmp_path: Path, give_away: GiveAway, attack: Callable[[Path, GiveAway], None]
) -> None:
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    found = contexts.Contexts()
    found.add("shop", contexts.Context(server="http://evil.example", token="t"))
    found.use("shop")
    contexts.write(found, environment)
    assert contexts.in_use(environment) is not None
    attack(contexts.contexts_file(environment), give_away)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        contexts.in_use(environment)


def test_contexts_that_others_can_read_are_hidden_from_them(tmp_path: Path) -> None:
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    contexts.write(contexts.Contexts(), environment)
    file = contexts.contexts_file(environment)
    file.chmod(0o644)
    contexts.read(environment)
    assert file.stat().st_mode & 0o777 == 0o600
