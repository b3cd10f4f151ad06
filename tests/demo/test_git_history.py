"""Reading a repository. Its changes, oldest first, rebuild exactly its tree."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.demo.git_log import Change
from headrace.cli.demo.histories import RepositoryHistory
from headrace.cli.demo.keys import key_of
from headrace.cli.demo.repository import Repository
from headrace.cli.errors import UnreadableInput
from headrace.model.keys import check_key
from tests.demo.repositories import Made, with_everything


def _replayed(path: Path) -> tuple[dict[str, str], list[Change]]:
    """Return the tree that the changes build. Each change must follow the one before."""
    state: dict[str, str | None] = {}
    seen = []
    for key, change in RepositoryHistory(path).messages():
        assert check_key(key) == key
        assert change.old == state.get(key), change
        state[key] = change.new
        seen.append(change)
    return {key: found for key, found in state.items() if found is not None}, seen


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return with_everything(tmp_path_factory.mktemp("git") / "every.thing")


def test_every_sort_of_change_and_of_name_leads_to_the_tree(everything: Made) -> None:
    tree, changes = _replayed(everything.path)
    assert tree == RepositoryHistory(everything.path).tree()
    assert len(tree) == len(everything.git("ls-tree", "-r", "-z", "HEAD").split("\0")) - 1
    assert {change.change for change in changes} == {"insert", "update", "delete"}
    assert len({change.commit for change in changes}) == 7  # the empty commit changed nothing


def test_a_change_says_what_git_says(everything: Made) -> None:
    _, changes = _replayed(everything.path)
    change = next(one for one in changes if one.path == "src/file 0.py" and one.change == "update")
    assert (change.repo, change.added, change.deleted, change.time) == ("every.thing", 1, 10, 1577836800)
    assert change.new == everything.git("rev-parse", "HEAD:src/file 0.py")
    binary = next(one for one in changes if one.path == "binary")
    assert (binary.added, binary.deleted) == (None, None)
    assert any(one.path == r"not-utf8-\xff\xfe" for one in changes)


def test_a_subdirectory_stands_for_its_repository(everything: Made) -> None:
    assert RepositoryHistory(everything.path / "src").tree() == RepositoryHistory(everything.path).tree()
    assert _replayed(everything.path / "src")[0] == RepositoryHistory(everything.path).tree()


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_shallow_clone_begins_with_all_files_of_its_first_commit(
    everything: Made, tmp_path: Path, depth: int
) -> None:
    everything.git(
        "clone",
        "-q",
        "--no-checkout",
        "--depth",
        str(depth),
        f"file://{everything.path}",
        str(tmp_path / "every.thing"),
    )
    tree, changes = _replayed(tmp_path / "every.thing")
    assert tree == RepositoryHistory(everything.path).tree()
    assert len({change.commit for change in changes}) == depth


def test_a_bare_repository(everything: Made, tmp_path: Path) -> None:
    everything.git("clone", "-q", "--bare", str(everything.path), str(tmp_path / "every.thing.git"))
    tree, _ = _replayed(tmp_path / "every.thing.git")
    assert tree == RepositoryHistory(everything.path).tree()


def test_settings_of_the_user_change_nothing(everything: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = _replayed(everything.path)
    config = tmp_path / "config"
    config.write_text(
        "[log]\nshowRoot = false\ndiffMerges = combined\nshowSignature = true\n"
        "[diff]\nrenames = copies\nignoreSubmodules = all\nsubmodule = log\nrelative = true\nnoprefix = true\n"
        "[color]\nui = always\n[core]\nquotePath = true\nabbrev = 5\n[format]\npretty = oneline\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))  # as inside a hook
    assert _replayed(everything.path) == expected


def test_one_commit(tmp_path: Path) -> None:
    made = Made(tmp_path / "one")
    made.write("a", "a")
    made.commit()
    tree, changes = _replayed(made.path)
    assert tree == RepositoryHistory(made.path).tree()
    assert [change.change for change in changes] == ["insert"]


def test_a_commit_of_no_files(tmp_path: Path) -> None:
    made = Made(tmp_path / "none")
    made.commit()
    assert _replayed(made.path) == ({}, [])


def test_object_ids_of_sha_256(tmp_path: Path) -> None:
    made = Made(tmp_path / "sha256", "--object-format=sha256")
    made.write("a", "a")
    made.commit()
    (made.path / "a").unlink()
    made.write("b", "b")
    made.commit()
    assert _replayed(made.path)[0] == RepositoryHistory(made.path).tree()


def test_a_directory_without_a_repository_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(UnreadableInput, match="--repo"):
        Repository(tmp_path / "nowhere")
    with pytest.raises(UnreadableInput, match="is not a git repository"):
        Repository(tmp_path)
    with pytest.raises(UnreadableInput, match="has no commit"):
        Repository(Made(tmp_path / "empty").path)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UnreadableInput, match="git is not installed"):
        Repository(tmp_path)


def test_a_broken_repository_is_reported(tmp_path: Path) -> None:
    made = Made(tmp_path / "broken")
    made.write("a", "a")
    made.commit()
    tree = made.git("rev-parse", "HEAD^{tree}")
    (made.path / ".git" / "objects" / tree[:2] / tree[2:]).unlink()
    with pytest.raises(UnreadableInput, match="git failed"):
        RepositoryHistory(made.path).tree()


_PATHS = st.lists(
    st.text(st.sampled_from(".%*>2EA/é\udcff \n"), min_size=1, max_size=12), min_size=2, max_size=8, unique=True
)


@given(_PATHS)
def test_different_paths_have_different_keys(paths: list[str]) -> None:
    keys = [key_of("re.po", path) for path in paths]
    assert all(check_key(key).count(".") == 2 for key in keys)
    assert all(one != other for one, other in itertools.combinations(keys, 2))


def test_a_path_too_long_for_a_key_has_one_all_the_same() -> None:
    long = "d/" * 600
    assert check_key(key_of("repo", long + "a")) != check_key(key_of("repo", long + "b"))
    assert check_key(key_of("r" * 2000, "a"))


def test_keys_are_those_of_the_published_histories() -> None:
    assert key_of("river", ".github/workflows/ci.yml") == "git.river.%2Egithub/workflows/ci%2Eyml"
