"""Settings of the Spark session: one rule of precedence, and clear errors for invalid settings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace_spark.session.configuration import configuration, connect_configuration, cores, environment
from headrace_spark.session.errors import SparkMisconfigured, SparkUnavailable
from headrace_spark.session.settings import Resolved, SparkSettings, check_master, read, without_token


def _read(directory: Path, text: str = "", given: SparkSettings | None = None, **variables: str) -> Resolved:
    (directory / "pyproject.toml").write_text(text)
    variables = {f"HEADRACE_SPARK_{name.upper()}": value for name, value in variables.items()}
    return read(given, environment=variables, directory=directory)


TABLE = """\
[tool.headrace.spark]
master = "local[1]"
app_name = "file"
[tool.headrace.spark.conf]
"spark.a" = "file"
spark.b = 2
spark.c.d = true
"""


def test_an_argument_counts_before_the_environment_before_the_project_before_the_default(tmp_path: Path) -> None:
    given = SparkSettings(app_name="argument", conf={"spark.a": "argument"})
    found = _read(tmp_path, TABLE, given, app_name="variable", master="local[2]", conf="spark.a=variable,spark.b=3")
    assert found.settings == SparkSettings(
        master="local[2]", app_name="argument", conf={"spark.a": "argument", "spark.b": "3", "spark.c.d": "true"}
    )
    assert found.places == {
        "app_name": "an argument",
        "conf.spark.a": "an argument",
        "master": "the environment (HEADRACE_SPARK_…)",
        "conf.spark.b": "the environment (HEADRACE_SPARK_…)",
        "conf.spark.c.d": f"[tool.headrace.spark] of {tmp_path}/pyproject.toml",
    }


def test_without_anything_it_is_all_cores_of_this_machine(tmp_path: Path) -> None:
    found = _read(tmp_path)
    assert (found.master, found.local, found.settings) == ("local[*]", True, SparkSettings())


def test_workers_of_a_local_cluster_import_what_is_here_unless_code_is_shipped_to_them(tmp_path: Path) -> None:
    assert _read(tmp_path, master="local-cluster[2,1,1024]").local
    assert not _read(tmp_path, master="local-cluster[2,1,1024]", ship="headrace").local
    assert _read(tmp_path, master="local[2]", ship="headrace").local


def test_a_master_or_remote_hides_those_of_lower_precedence(tmp_path: Path) -> None:
    found = _read(tmp_path, TABLE, remote="sc://server:1")
    assert (found.settings.master, found.settings.remote, found.local) == (None, "sc://server:1", False)
    found = _read(tmp_path, TABLE, SparkSettings(master="local"), remote="sc://server:1")
    assert (found.settings.master, found.settings.remote) == ("local", None)


def test_a_comma_may_be_part_of_a_value(tmp_path: Path) -> None:
    found = _read(tmp_path, conf="spark.jars=a.jar,b.jar, spark.x.y=1=2,")
    assert found.settings.conf == {"spark.jars": "a.jar,b.jar", "spark.x.y": "1=2"}


def test_what_is_shipped_is_a_list_or_a_variable_with_commas(tmp_path: Path) -> None:
    found = _read(tmp_path, ship=" service.py, prices ,")
    assert found.settings.ship == ("service.py", "prices")
    found = _read(tmp_path, "[tool.headrace.spark]\nship = ['src', './src', '/opt/a.py']")
    assert found.settings.ship == ("src", f"{tmp_path}/src", "/opt/a.py"), "a path begins at the file"
    assert found.places == {"ship": f"[tool.headrace.spark] of {tmp_path}/pyproject.toml"}
    assert _read(tmp_path, given=SparkSettings(ship=(".",)), ship="x").settings.ship == (".",)


def test_the_limit_of_a_start_is_a_duration(tmp_path: Path) -> None:
    assert _read(tmp_path).start_timeout == 300
    assert _read(tmp_path, start_timeout="10m").start_timeout == 600
    assert (
        _read(tmp_path, "[tool.headrace.spark]\nstart_timeout = 5", SparkSettings(start_timeout="1m")).start_timeout
        == 60
    )
    assert _read(tmp_path, "[tool.headrace.spark]\nstart_timeout = 5").settings.start_timeout == 5


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[tool.headrace.spark]\nship = '.'", "'ship' is '.' in .*, and must be a list of modules"),
        ("[tool.headrace.spark]\nship = [5]", r"'ship' is \[5\] in .*, and must be a list of modules"),
        ("[tool.headrace]\nspark = 5", "is not a table"),
        (
            "[tool.headrace.spark]\nmastr = 'local'",
            r"The Spark setting 'mastr' in .* does not exist\. The settings are master, remote",
        ),
        ("[tool.headrace.spark]\nmaster = 5", "'master' is 5 in .*, and must be a string"),
        ("[tool.headrace.spark]\nmaster = 'local'\nremote = 'sc://x'", "Leave out 'master' or 'remote'"),
        ("[tool.headrace.spark]\nconf = 'x'", "'conf' is 'x' in .*, and must be a table"),
        (
            "[tool.headrace.spark.conf]\nspark.master = 'local'",
            "spark.master can't be set in .* Use the setting 'master'",
        ),
        ("[tool.headrace.spark.conf]\nspark.x = []", r"spark.x .* is \[\] in .*, and must be a string"),
        ("[tool.headrace.spark]\nstart_timeout = 'soon'", "start_timeout='soon' .* It is set by .*pyproject.toml"),
        ("[tool.headrace.spark]\nstart_timeout = 0", "start_timeout is 0 s in .*, and must be greater than 0"),
        ("[tool.headrace.spark", "can't be read"),
    ],
)
def test_the_error_of_a_wrong_table_says_what_would_be_right(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(SparkMisconfigured, match=reason) as raised:
        _read(tmp_path, text)
    assert isinstance(raised.value, SparkUnavailable)
    assert raised.value.exit_code == 78


@pytest.mark.parametrize(
    "master",
    [
        "local", "local[*]", "local[3]", "local[*, 4]", "local-cluster[2,1,1024]", "yarn", "spark://a:7077,b:7077",
        "k8s://https://host:6443", "other://somewhere",
    ],
)  # fmt: skip
def test_valid_masters_are_accepted(master: str) -> None:
    check_master(master)


@pytest.mark.parametrize(
    "master", ["", "lokal[*]", "local[0]", "local[x]", "local[", "spark:/x", "spark://host", "sc://host", "Yarn", "x"]
)
def test_invalid_masters_are_refused(master: str) -> None:
    with pytest.raises(SparkMisconfigured, match=r"is invalid\. Write"):
        check_master(master)


def test_a_token_of_a_connect_server_is_not_shown() -> None:
    assert without_token("sc://host:1/;token=x;use_ssl=true") == "sc://host:1/;…"
    assert without_token("sc://host:1") == "sc://host:1"


def test_what_suits_a_local_master_is_not_asked_of_a_cluster(tmp_path: Path) -> None:
    local = configuration(_read(tmp_path, master="local[3]", conf="spark.ui.enabled=true"))
    assert (local["spark.sql.shuffle.partitions"], local["spark.ui.enabled"]) == ("3", "true")
    assert (local["spark.driver.host"], local["spark.app.name"]) == ("127.0.0.1", "headrace")
    cluster = configuration(_read(tmp_path, master="spark://a:7077"))
    assert {"spark.sql.shuffle.partitions", "spark.driver.host"}.isdisjoint(cluster)
    assert cluster["spark.sql.session.timeZone"] == "UTC"
    server = connect_configuration(
        _read(tmp_path, remote="sc://a", conf="spark.sql.ansi.enabled=false,spark.driver.memory=4g")
    )
    assert server == {"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "false"}


def test_what_the_installation_says_counts_before_what_suits_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spark-defaults.conf").write_text("# ours\nspark.ui.enabled  true\nspark.log.level=WARN\n\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    found = configuration(_read(tmp_path))
    assert {"spark.ui.enabled", "spark.log.level"}.isdisjoint(found)
    assert configuration(_read(tmp_path, conf="spark.log.level=INFO"))["spark.log.level"] == "INFO"


def test_passwords_are_masked_at_a_cost_in_proportion_to_the_text(tmp_path: Path) -> None:
    """Python takes look-behinds of a fixed length only, and these cost Java little."""
    pattern = re.compile(configuration(_read(tmp_path))["spark.sql.redaction.string.regex"])
    for text, shown in (
        ("postgresql://shop:hunter2@db/x", "postgresql://…@db/x"),
        ("postgresql://:hunter2@db", "postgresql://…@db"),
        ("host=db password=hunter2 user=shop", "host=db password=… user=shop"),
        ("password='hunter 2', x", "password=…, x"),
        ("http://host:80/a@b, shop@db:5432", "http://host:80/a@b, shop@db:5432"),
    ):
        assert pattern.sub("…", text) == shown


def test_the_threads_of_a_local_master() -> None:
    assert [cores("local"), cores("local[3]"), cores("local[3,2]")] == [1, 3, 3]
    assert cores("local[*]") >= 1


def test_workers_of_this_machine_import_what_this_process_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYSPARK_PYTHON", "elsewhere")
    import sys
    import sysconfig

    local = environment(_read(tmp_path), None)
    assert local["PYSPARK_PYTHON"] == local["PYSPARK_DRIVER_PYTHON"] == sys.executable
    places = local["PYTHONPATH"].split(":")
    assert places[0] == str(tmp_path)
    assert sysconfig.get_path("stdlib") not in places
    cluster = environment(_read(tmp_path, master="spark://a:7077"), None)
    assert (cluster["PYSPARK_PYTHON"], "PYTHONPATH" in cluster) == ("elsewhere", False)
    assert environment(_read(tmp_path, master="spark://a:1", python="there"), None)["PYSPARK_PYTHON"] == "there"


@pytest.mark.parametrize(
    ("master", "requested"), [("local[2]", False), ("local", False), ("local-cluster[2,1,1024]", True), ("yarn", True)]
)
def test_a_session_in_this_process_ignores_a_request_for_gpus(master: str, requested: bool, tmp_path: Path) -> None:
    gpus = {"spark.executor.resource.gpu.amount": "1", "spark.task.resource.gpu.amount": "0.5"}
    found = configuration(_read(tmp_path, given=SparkSettings(master=master, conf=gpus)))
    assert {name: value for name, value in found.items() if "resource" in name} == (gpus if requested else {})


def test_the_scratch_directory_is_the_user_s_own_and_goes_with_the_process(tmp_path: Path) -> None:
    """On a shared machine another user could otherwise have made it, and exchange the code that is shipped."""
    program = (
        "from headrace_spark.session.configuration import scratch\n"
        "(scratch() / 'shipped').mkdir(parents=True)\n"
        "print(scratch(), oct(scratch().stat().st_mode & 0o777))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert re.fullmatch(rf"{tmp_path}/headrace-spark-\w+ 0o700\n", ended.stdout)
    assert list(tmp_path.iterdir()) == []
