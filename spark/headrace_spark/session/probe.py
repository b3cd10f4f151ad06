"""Describes a Python interpreter of a cluster. It needs nothing but the standard library.

Workers get it by value, since they may have nothing of Headrace yet. On this machine it is run as a
program, by the same interpreter that the executors use.
"""

import importlib.metadata
import importlib.util
import json
import platform
import sys
import sysconfig
from typing import Any

PACKAGES = ("adbc_driver_manager", "adbc_driver_postgresql", "msgspec", "pyarrow")
"""Packages that reading and writing streams needs, besides Spark's own."""


def describe(packages: tuple[str, ...] = PACKAGES) -> dict[str, Any]:
    """Describe the interpreter that runs this.

    Returns:
        `python`, its version, and `pyspark`, that of its PySpark if it is running Spark. `executable`, its path. `tag`, which tells whether a
        compiled module of another machine works here. `headrace`, the version that is installed,
        an empty text if its version is unknown, and None if there is none. `missing`, the packages
        that it lacks.
    """
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "tag": str(sysconfig.get_config_var("SOABI")),
        "headrace": _headrace(),
        "pyspark": str(getattr(sys.modules.get("pyspark"), "__version__", "")),
        "missing": [name for name in packages if importlib.util.find_spec(name) is None],
    }


def _headrace() -> str | None:
    if importlib.util.find_spec("headrace") is None:
        return None
    try:
        return importlib.metadata.version("headrace")
    except importlib.metadata.PackageNotFoundError:
        return ""


def main() -> None:
    """Print the description as JSON."""
    print(json.dumps(describe()))


if __name__ == "__main__":
    main()
