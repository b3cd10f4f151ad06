"""Git repositories made for a test."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


class Made:
    """A git repository that a test makes, commit by commit."""

    def __init__(self, path: Path, *options: str) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.git("init", "-q", "-b", "main", *options)

    def git(self, *arguments: str | bytes) -> str:
        person = {
            f"GIT_{role}_{what}": value
            for role in ("AUTHOR", "COMMITTER")
            for what, value in (("NAME", "Ada"), ("EMAIL", "ada@example.org"), ("DATE", "2020-01-01T00:00:00Z"))
        }
        isolated = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        ended = subprocess.run(
            ["git", "-c", "protocol.file.allow=always", *arguments],
            cwd=self.path, env={**os.environ, **person, **isolated}, capture_output=True, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.decode(errors="replace").strip()

    def write(self, path: str | bytes, content: str) -> None:
        whole = os.path.join(os.fsencode(self.path), os.fsencode(path))
        os.makedirs(os.path.dirname(whole), exist_ok=True)
        with open(whole, "w") as file:
            file.write(content)

    def commit(self, message: str = "commit") -> str:
        self.git("add", "--all")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")


def with_everything(path: Path) -> Made:
    """Make a history with every kind of change that git has, and every kind of name that it allows."""
    made = Made(path)
    for number in range(5):
        made.write(f"src/file {number}.py", f"{number}\n" * 10)
    made.write("*", "star")
    made.write(".hidden/..dots..", "dots")
    made.write("ünïcode/雪.txt", "snow")
    made.write("new\nline\tand tab", "x")
    made.write("100%.2E", "percent")
    made.write("100%.", "percent too")
    made.write(":colon", "x")
    made.write("commit abc 1", "x")
    made.write(b"not-utf8-\xff\xfe", "bytes")
    made.write("a" * 200 + "/" + "é" * 100 + "/" + "b" * 250 + "/" + "c" * 250 + "/" + "." * 3 + "d" * 200, "deep")
    (path / "binary").write_bytes(bytes(range(256)))
    made.commit("first")
    made.commit("an empty commit")
    made.write("src/file 0.py", "changed\n")
    (path / "src" / "file 1.py").unlink()
    (path / "src" / "file 2.py").rename(path / "src" / "renamed.py")
    (path / "binary").write_bytes(bytes(range(255, -1, -1)))
    (path / "src" / "file 3.py").chmod(0o755)
    (path / "link").symlink_to("src/file 0.py")
    made.commit("update, delete, rename, mode, link")
    made.write("src/file 1.py", "back again\n")
    (path / "link").unlink()
    made.write("link", "now a file\n")
    made.commit("insert again, and another type")
    made.git("checkout", "-q", "-b", "side")
    made.write("side", "side\n")
    made.commit("on the side")
    made.git("checkout", "-q", "main")
    made.write("src/file 4.py", "main\n")
    made.commit("on main meanwhile")
    made.git("merge", "-q", "--no-ff", "-m", "merge", "side")
    commit = made.git("rev-parse", "HEAD")
    made.git("update-index", "--add", "--cacheinfo", f"160000,{commit},a submodule")
    made.git("commit", "-q", "-m", "a submodule")
    made.git("update-index", "--cacheinfo", f"160000,{'1' * 40},a submodule")
    made.git("commit", "-q", "-m", "the submodule moves on")
    return made
