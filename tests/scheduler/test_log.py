"""The log of the service has one JSON object a line, whoever writes to its stderr, and whatever goes wrong."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import logging, os, subprocess, sys, threading, warnings
from pgtrickle.scheduler import events
events.to_stderr()
events.say("first", table="a\\nb")
warnings.warn("a library\\nwarns of something")
logging.getLogger("library").error("two\\nlines")
logging.getLogger("library").error("%d of them", "none")  # cannot be formatted
def fail():
    raise ValueError("in a\\nthread")
thread = threading.Thread(target=fail, name="refresh-1")
thread.start()
thread.join()
print("printed by someone", file=sys.stderr)
os.write(2, b"written by\\nJava \\xff")
subprocess.run([sys.executable, "-c", "import sys; print('of a child', file=sys.stderr)"], check=True)
raise KeyError("at the end")
"""


def test_a_log_that_no_one_reads_keeps_no_one_busy() -> None:
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], stderr=subprocess.PIPE)
    assert process.stderr is not None
    process.stderr.close()
    assert process.wait(60) == 1


def test_every_line_is_an_event() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    told = [json.loads(line) for line in done.stderr.splitlines()]
    assert all(each["at"] and each["level"] and each["event"] for each in told)
    assert told[0]["event"] == "first"
    library = [each["message"] for each in told if each["event"] == "library"]
    assert any("a library\nwarns of something" in message for message in library)
    assert "two\nlines" in library
    (thread,) = [each for each in told if each["event"] == "thread_broken"]
    assert (thread["thread"], thread["error"]) == ("refresh-1", "ValueError: in a thread")
    assert "in fail" in thread["traceback"]
    (ended,) = [each for each in told if each["event"] == "service_broken"]
    assert ended["error"] == "KeyError: 'at the end'"
    foreign = "\n".join(each["line"] for each in told if each["event"] == "output")
    for line in ("printed by someone", "written by", "Java \\xff", "of a child", "TypeError: %d format"):
        assert line in foreign
