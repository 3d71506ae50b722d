"""One Trickle in several threads: calls take turns, and every one answers as if it were alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg

import pgtrickle


def test_calls_of_many_threads_take_turns(database18: str) -> None:
    with psycopg.connect(database18, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id integer PRIMARY KEY, amount numeric)")
    with pgtrickle.connect(database18) as trickle, ThreadPoolExecutor(8) as threads:

        def live(number: int) -> list[object]:
            name = f"t{number}"
            query = f"SELECT id, amount * {number} AS n FROM orders"
            made = trickle.create_stream_table(name, query, initialize=False)
            trickle.alter_stream_table(name, query=f"{query} WHERE id > 1", schedule="5m")
            found = trickle.status(name)[0]
            told = trickle.explain(name)
            return [made, found.pgt_name, found.schedule, "orders" in told, trickle.drop_stream_table(name)]

        lives = list(threads.map(live, range(6)))
        assert lives == [[None, f"t{n}", "5m", True, [f"public.t{n}"]] for n in range(6)]
        assert not trickle.status()


def test_a_second_thread_waits(database18: str) -> None:
    with pgtrickle.connect(database18) as trickle, psycopg.connect(database18) as other:
        other.execute("LOCK TABLE pgtrickle.pgt_stream_tables IN ACCESS EXCLUSIVE MODE")
        answered = threading.Event()
        first = threading.Thread(target=trickle.status)

        def ask() -> None:
            trickle.health()
            answered.set()

        second = threading.Thread(target=ask)
        first.start()
        second.start()
        assert trickle.backend_pids, "may be asked for by any thread, while the others wait"
        assert not answered.is_set()
        other.rollback()
        first.join()
        second.join()
        assert answered.is_set()
