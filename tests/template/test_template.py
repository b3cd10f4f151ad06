"""The service template. `headrace new` creates it, its tests pass, and it runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from headrace.cli.commands.new import package_name, template
from headrace.cli.errors import UsageError
from headrace.cli.main import call
from tests.cli.processes import Commands, Running
from tests.docs.code_blocks import ROOT, blocks

FORGOTTEN = ("my-service", "my_service", "MY_SERVICE")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("HEADRACE_DATABASE", "HEADRACE_LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    assert call(["new", "web-shop"]) == 0
    return tmp_path / "web-shop"


def _texts(directory: Path) -> dict[str, str]:
    return {str(path.relative_to(directory)): path.read_text() for path in directory.rglob("*") if path.is_file()}


def test_it_has_everything_under_its_own_name(shop: Path) -> None:
    texts = _texts(shop)
    assert {"README.md", "pyproject.toml", ".gitignore", "web_shop/service.py", "tests/test_service.py"} <= texts.keys()
    assert not [name for name, text in texts.items() for word in FORGOTTEN if word in text or word in name]
    assert not [name for name in texts if "__pycache__" in name]
    assert list(shop.parent.iterdir()) == [shop]


@pytest.mark.long
def test_its_tests_pass_without_spark(commands: Commands, shop: Path, tmp_path: Path) -> None:
    """Tests that need Spark are in tests/spark/test_template.py."""
    environment = without_spark(commands.environment(), tmp_path / "hidden")
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio"]
    ended = subprocess.run(tests, cwd=shop, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "7 passed, 1 skipped" in ended.stdout


@pytest.mark.long
def test_a_web_service_passes_its_tests_and_takes_and_ships_an_order(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dsn: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(["new", "web-shop", "--with", "fastapi"]) == 0
    shop = tmp_path / "web-shop"
    assert not [name for name, text in _texts(shop).items() for word in FORGOTTEN if word in text or word in name]
    assert not (shop / "with").exists()
    environment = without_spark(commands.environment(), tmp_path / "hidden")
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "tests/test_web.py"]
    ended = subprocess.run(tests, cwd=shop, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "3 passed" in ended.stdout
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "web_shop"],
        cwd=shop,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout
    serving = Running(
        ("web_shop.web:web", "--port", "0"), shop, {**environment, "HEADRACE_DATABASE": dsn}, module="uvicorn"
    )
    try:
        url = re.search(r"http://\S+:\d+", serving.line("Uvicorn running on"))
        assert url is not None
        assert httpx.post(f"{url[0]}/orders", json={"customer": "Ada", "items": ["a hat"]}).json()["id"] == 1
        while (found := httpx.get(f"{url[0]}/orders/1").json())["tracking"] is None:
            pass
        assert found == {"id": 1, "tracking": "T00000001-1"}
        serving.send(signal.SIGINT)
        serving.end()
    finally:
        serving.close()


def without_spark(environment: dict[str, str], directory: Path) -> dict[str, str]:
    """An environment in which PySpark isn't installed."""
    directory.mkdir()
    (directory / "pyspark.py").write_text("raise ModuleNotFoundError(\"No module named 'pyspark'\", name='pyspark')\n")
    before = environment.get("PYTHONPATH")
    return environment | {"PYTHONPATH": f"{directory}{os.pathsep}{before}" if before else str(directory)}


def test_switched_on_without_spark_it_says_what_to_install(commands: Commands, shop: Path, tmp_path: Path) -> None:
    environment = without_spark(commands.environment(), tmp_path / "hidden")
    running = Running(("run", "web_shop.service:app"), shop, {**environment, "WEB_SHOP_SPARK": "true"})
    try:
        assert running.end() == 69
        assert "pip install 'headrace[spark]'" in running.lines[-1]
    finally:
        running.close()


def test_it_runs(commands: Commands, shop: Path, dsn: str) -> None:
    order = {"key": "orders.eu.7", "data": {"id": 7, "items": ["a hat"]}}
    running = commands("run", "web_shop.service:app", HEADRACE_DATABASE=dsn, WEB_SHOP_REGION="eu", directory=shop)
    running.line("orders/ship (orders.eu.>)")
    publishing = commands("publish", "orders", "--create", "--database", dsn)
    publishing.write(json.dumps(order) + "\n")
    running.line("order 7 is on its way: T00000007-1")
    publishing.send(signal.SIGINT)
    running.send(signal.SIGTERM)
    assert running.end() == 0


def test_a_wrong_setting_is_reported(commands: Commands, shop: Path) -> None:
    running = commands("run", "web_shop.service:app", WEB_SHOP_REGOIN="eu", directory=shop)
    assert running.end() == 78
    assert "WEB_SHOP_REGION" in running.lines[-1]


def test_existing_files_are_not_overwritten(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = _texts(shop)
    assert call(["new", "web-shop"]) == 73
    assert "not an empty directory" in capsys.readouterr().err
    assert _texts(shop) == before


def test_an_empty_directory_may_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shop").mkdir()
    assert call(["new", "shop"]) == 0
    assert Path("shop/shop/service.py").is_file()


def test_a_directory_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.copytree", full)
    assert call(["new", "shop"]) == 73
    assert "No space left" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["", "Shop", "9shop", "a b", "../x", "a--b", "json", "class", "headrace", "tests", "ä"]
)
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(UsageError):
        package_name(name)


def test_the_checkout_and_an_installed_package_both_have_it() -> None:
    assert (template() / "my_service" / "service.py").is_file()


def test_the_page_of_the_web_service_shows_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(["new", "shop", "--with", "fastapi"]) == 0
    code = "".join((tmp_path / "shop" / name).read_text() for name in ("shop/web.py", "tests/test_web.py"))
    page = [block for block in blocks(ROOT / "docs" / "fastapi.md") if block.language == "python"]
    assert page
    assert all(block.text.strip() in code for block in page)
