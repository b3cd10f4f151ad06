"""What the tests of lakes need from the package registries: moto, and S3A with Amazon's SDK. Each is fetched once, with pip.

Hadoop's S3A is in no separate package on PyPI. One that works with Spark carries it, with the SDK. It is older than the Hadoop in Spark,
whose defaults it can't read all, so `S3A` has them in its form.
"""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

from tests.versions.fetching import CACHE, NotFetchedError, keep, make_directory

MOTO = Path(__file__).with_name("moto.txt")
CARRIER = "sagemaker-pyspark==1.4.5 --hash=sha256:05ca2d5081d7138ce29a8fb0a9cba077f28c825288ed07aed46a82e63c0bf1fb"
JARS = ("hadoop-aws-3.3.1.jar", "aws-java-sdk-bundle-1.11.901.jar")
LIMIT = 300.0
"""Seconds for pip to fetch one of them. The larger one has 180 MB."""

S3A = {
    "spark.hadoop.fs.s3a.aws.credentials.provider": "com.amazonaws.auth.EnvironmentVariableCredentialsProvider",
    "spark.hadoop.fs.s3a.connection.establish.timeout": "5000",
    "spark.hadoop.fs.s3a.connection.timeout": "60000",
    "spark.hadoop.fs.s3a.connection.ttl": "300000",
    "spark.hadoop.fs.s3a.multipart.purge.age": "86400",
    "spark.hadoop.fs.s3a.threads.keepalivetime": "60",
}
"""The configuration of this S3A."""


def require() -> None:
    """Fetch what is missing. Skip the test if that is impossible."""
    try:
        moto()
        jars()
    except NotFetchedError as error:
        pytest.skip(f"ARCHIVES ARE NOT TESTED ON AN OBJECT STORE: {error}")


def moto() -> Path:
    """Return the directory of moto and all that it needs."""
    text = MOTO.read_bytes()
    target = CACHE / f"moto-{hashlib.sha256(text).hexdigest()[:8]}-{sys.implementation.cache_tag}"
    if not target.is_dir():
        make_directory(CACHE)
        with tempfile.TemporaryDirectory(prefix="fetching-", dir=CACHE) as aside:
            _pip("install", "--no-deps", "--only-binary=:all:", f"--target={aside}/moto", f"--requirement={MOTO}")
            keep(Path(aside, "moto"), target)
    return target


def jars() -> list[Path]:
    """Return the jars of S3A."""
    target = CACHE / f"s3a-{hashlib.sha256(CARRIER.encode()).hexdigest()[:8]}"
    if not target.is_dir():
        make_directory(CACHE)
        with tempfile.TemporaryDirectory(prefix="fetching-", dir=CACHE) as aside:
            wanted = Path(aside, "wanted.txt")
            wanted.write_text(CARRIER)
            # pip compares the digest before it reads anything of a package.
            _pip("download", "--no-deps", "--no-binary=:all:", f"--dest={aside}", f"--requirement={wanted}")
            (archive,) = Path(aside).glob("*.tar.gz")
            made = Path(aside, "jars")
            made.mkdir()
            with tarfile.open(archive) as packed:
                for member in packed:
                    name = member.name.rpartition("/")[2]
                    if name in JARS and (content := packed.extractfile(member)) is not None:
                        with content, (made / name).open("wb") as file:
                            while part := content.read(1 << 20):
                                file.write(part)
            keep(made, target)
    return [target / name for name in JARS]


def _pip(*words: str) -> None:
    if importlib.util.find_spec("pip") is None:
        raise NotFetchedError("this environment has no pip")
    command = [sys.executable, "-m", "pip", words[0], "--quiet", "--disable-pip-version-check", "--retries=1"]
    try:
        ended = subprocess.run(
            [*command, *words[1:]], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotFetchedError(f"pip {words[0]} took more than {LIMIT:.0f} s") from None
    if ended.returncode != 0:
        lines = [line for line in ended.stderr.splitlines() if line.startswith("ERROR")]
        raise NotFetchedError(f"pip {words[0]} failed: {' '.join(lines[:2]) or f'exit code {ended.returncode}'}")
