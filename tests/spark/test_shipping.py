"""The files that are sent to executors: which files, how they are packed, and what is refused."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from headrace_spark.session import fitness, shipping
from headrace_spark.session.errors import SparkMisconfigured, SparkUnavailable
from headrace_spark.session.fitness import Python

HERE = Python(python="3.11.7", executable="/x/python", tag="one", headrace="2.0", pyspark="4.3.0", missing=())


def write(directory: Path, *names: str, text: str = "") -> None:
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def own(directory: Path, *entries: str) -> dict[str, list[str]]:
    """The user's part of a shipment: the names of the files by those of modules."""
    everything = shipping.gather(entries, directory=directory).parts
    ours = shipping.gather([]).parts
    return {name: sorted(files) for name, files in everything.items() if name not in ours}


def test_headrace_and_the_small_packages_that_it_needs_are_sent_and_nothing_large() -> None:
    found = shipping.gather([])
    assert {"headrace", "headrace_spark", "msgspec", "adbc_driver_postgresql", "asyncpg"} <= found.parts.keys()
    assert not {"pyspark", "pyarrow", "pandas", "numpy"} & found.parts.keys()
    assert "msgspec" in found.compiled
    assert not any(name.startswith(("cli/", "server/")) for name in found.parts["headrace"])
    without = shipping.gather([], packages=False)
    assert without.compiled == []
    assert {name for name in without.parts if name.isidentifier()} == {"headrace", "headrace_spark"}


def test_what_is_sent_is_enough_to_import_a_service(tmp_path: Path) -> None:
    """Only Spark, pyarrow and their like are added. The interpreter has no packages."""
    from tests.spark.cluster import python_of_nodes
    from tests.spark.on_cluster import write_service

    write_service(tmp_path)
    for name, files in shipping.gather(["."], directory=tmp_path).parts.items():
        if "" in files:
            (tmp_path / "sent").mkdir(exist_ok=True)
            (tmp_path / "sent" / files[""].name).write_bytes(files[""].read_bytes())
        else:
            zipfile.ZipFile(shipping.packed(files, tmp_path)).extractall(tmp_path / "sent" / name)
    python = python_of_nodes(
        tmp_path / "python", ("numpy", "pandas", "pyarrow", "pytz", "dateutil", "six", "pyspark", "py4j")
    )
    program = "import service, headrace_spark.source.reader, headrace_spark.source.writer, headrace_spark.pipelines.archive; import adbc_driver_postgresql.dbapi; print(service.__file__)"
    ended = subprocess.run(
        [python, "-c", program],
        env={"PYTHONPATH": str(tmp_path / "sent")},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout == f"{tmp_path}/sent/service.py\n", ended.stderr


def test_entries_are_modules_packages_directories_and_names(tmp_path: Path) -> None:
    write(tmp_path, "service.py", "parts/__init__.py", "parts/deep/inner.py", "parts/sizes.json", "plain/inner.py")
    write(tmp_path, "env/pyvenv.cfg", "env/lib/x.py", "notes.md", ".hidden/x.py", "node_modules/x.py")
    packages = {"parts": ["__init__.py", "deep/inner.py", "sizes.json"], "plain": ["inner.py"]}
    assert own(tmp_path, ".") == {"service": [""], **packages}
    assert own(tmp_path, "service.py", "./parts") == {"service": [""], "parts": packages["parts"]}
    assert own(tmp_path, "service", "parts", "plain") == {"service": [""], **packages}
    assert own(tmp_path, "headrace") == {}


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("nosuch", "The module 'nosuch', which ship names, can't be found"),
        ("a.b/", "The path 'a.b/', which ship names, does not exist in "),
        ("a-b", "'a-b', which ship names, can't be found"),
        ("notes.md", "can't be found. Write the name of a top-level module or package, or a path"),
        ("./notes.md", "is not a Python module. Name .py files and directories"),
        ("./json.py", "would hide Python's own 'json' on executors. Rename it"),
        ("./msgspec.py", "would hide the package's 'msgspec' on executors. Rename it"),
        ("sys", "'sys', which ship names, is not a file"),
        ("./empty", "There is no Python module in "),
    ],
)
def test_what_can_not_be_sent_is_refused_with_a_reason(tmp_path: Path, entry: str, reason: str) -> None:
    write(tmp_path, "json.py", "msgspec.py", "notes.md", "empty/x.csv")
    with pytest.raises(SparkMisconfigured) as raised:
        shipping.gather([entry], directory=tmp_path)
    assert reason in str(raised.value)


def test_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "service.py")
    write(tmp_path, "large/data.py", text="y" * 1000)
    monkeypatch.setattr(shipping, "MAX_BYTES", 500)
    with pytest.raises(SparkMisconfigured, match="most of them in 'large'"):
        shipping.gather(["."], directory=tmp_path)
    monkeypatch.setattr(shipping, "MAX_FILES", 0)
    with pytest.raises(SparkMisconfigured, match="more than 0 files"):
        shipping.gather(["./large"], directory=tmp_path)


def test_equal_files_make_equal_archives_and_other_files_others(tmp_path: Path) -> None:
    write(tmp_path, "a/m.py", "b/m.py", text="1")
    write(tmp_path, "c/m.py", text="2")
    made = [shipping.packed({"m.py": tmp_path / place / "m.py"}, tmp_path) for place in "abc"]
    assert made[0] == made[1] != made[2]
    (tmp_path / "a/m.py").touch()
    content = made[0].read_bytes()
    assert shipping.packed({"m.py": tmp_path / "a/m.py"}, tmp_path).read_bytes() == content


@pytest.mark.parametrize(
    ("changed", "shipped", "reason"),
    [
        ({}, False, None),
        ({"python": "3.9.2"}, True, "The Python on an executor, /x/python, is 3.9.2, and that of this process 3.11.7. Set python"),
        ({"pyspark": "4.3.1"}, True, None),
        ({"pyspark": "4.2.0"}, True, "has PySpark 4.2.0, and this process 4.3.0. Both must be the same. Install pyspark==4.2.0"),
        ({"headrace": None}, False, "lacks headrace. Ship it (--ship headrace, or HEADRACE_SPARK_SHIP=headrace), install headrace[spark]==2.0"),
        ({"headrace": None}, True, None),
        ({"headrace": "1.0"}, False, "has headrace 1.0, and this process 2.0. Ship it"),
        ({"headrace": "1.0"}, True, None),
        ({"headrace": ""}, False, None),
        ({"missing": ("msgspec",)}, False, "lacks msgspec. Ship it"),
        ({"missing": ("msgspec",)}, True, None),
        ({"missing": ("msgspec",), "tag": "two"}, True, "lacks msgspec. Compiled code is not shipped to another kind of machine. Run pip install msgspec"),
        ({"missing": ("pyarrow",)}, True, "lacks pyarrow. Spark needs it there. Run pip install pyarrow there"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, object], shipped: bool, reason: str | None
) -> None:
    import msgspec

    monkeypatch.setattr(fitness, "here", lambda: HERE)
    found = fitness.misfit(msgspec.structs.replace(HERE, **changed), where="on an executor", shipped=shipped)
    assert (found is None) if reason is None else (reason in str(found)), found


def test_the_python_of_the_executors_must_exist_on_this_machine(tmp_path: Path) -> None:
    assert fitness.of_planner(sys.executable).executable == sys.executable
    with pytest.raises(SparkUnavailable, match="/no/python, does not exist on this machine"):
        fitness.of_planner("/no/python")
    assert "does not exist on this machine" in str(fitness.planner_misfit("/no/python", shipped=True))
    assert fitness.planner_misfit(sys.executable, shipped=True) is None
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(SparkUnavailable, match="can't be run on this machine"):
        fitness.of_planner(str(broken))
