#!/bin/sh
# The Python of Spark's workers where only a program can be named (Spark Connect): that of the machine, with what lies
# beside this file. PYSPARK_PYTHON, set where Spark's workers run, names another.
here=$(cd "$(dirname "$0")" && pwd)
PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" exec "${PYSPARK_PYTHON:-@PYTHON@}" "$@"
