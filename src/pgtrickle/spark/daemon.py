"""Where Spark forks its Python workers from: with what every task needs imported once, not by each worker anew.

Spark ends workers that were idle for a minute, which is how long most schedules are: without this, such a refresh pays
the imports again. Run by Spark as its `spark.python.daemon.module`.

A worker collects garbage after each task, before it takes the next one. What was imported is kept out of that: looking
through it took 30 to 60 ms a task.

Nothing imported here may start a thread that a fork would lose. NumPy's does not with one thread; Arrow's allocator has
one, and takes care of forks itself.
"""

from __future__ import annotations

import gc
import os
from importlib import import_module

from pyspark.daemon import manager

OF_EVERY_TASK = ("pyspark.worker", "pgtrickle.spark.landing", "pgtrickle.spark.batch_job", "pgtrickle.spark.worker")

if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for module in OF_EVERY_TASK:
        import_module(module)
    gc.collect()
    gc.freeze()
    manager()
