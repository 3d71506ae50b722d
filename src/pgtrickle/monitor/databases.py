"""Metrics of all databases that a process serves: those of each, under a label with its name. For `endpoint.py`.

They are asked side by side, so one that is down or slow takes no time of the others, and says `pgtrickle_up 0`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import psycopg
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from psycopg.conninfo import conninfo_to_dict

from pgtrickle.db import mask
from pgtrickle.monitor.metrics import CatalogMetrics

LABEL = "database"


class DatabaseMetrics(Collector):
    """The metrics of each database, with the label. Several logins of one database are one."""

    def __init__(self, dsns: Sequence[str]) -> None:
        self._databases = {name: CatalogMetrics(dsn) for name, dsn in named(dsns).items()}
        self._asking = ThreadPoolExecutor(max_workers=len(self._databases), thread_name_prefix="metrics")

    def describe(self) -> list[Metric]:
        """Nothing beforehand: being registered must not ask a database."""
        return []

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        found = self._asking.map(lambda each: list(each.collect()), self._databases.values())
        for name, metrics in zip(self._databases, found, strict=True):
            for each in metrics:
                family = families.setdefault(each.name, Metric(each.name, each.documentation, each.type))
                family.samples += [sample._replace(labels={LABEL: name, **sample.labels}) for sample in each.samples]
        yield from families.values()

    def problems(self) -> dict[str, str]:
        """Why databases cannot be asked, by their names: those that cannot."""
        found = self._asking.map(CatalogMetrics.problem, self._databases.values())
        return {name: problem for name, problem in zip(self._databases, found, strict=True) if problem is not None}

    def are_all(self, problems: dict[str, str]) -> bool:
        """Whether no database can be asked."""
        return len(problems) == len(self._databases)


def names_of(dsns: Sequence[str]) -> list[str | None]:
    """How the log tells the services of a process apart; None if there is only one."""
    if len(dsns) == 1:
        return [None]
    found = named(dsns)
    names = []
    for dsn in dsns:
        database = next(name for name, other in found.items() if _place(other) == _place(dsn))
        several = sum(_place(other) == _place(dsn) for other in dsns) > 1
        names.append(f"{conninfo_to_dict(dsn).get('user')}@{database}" if several else database)
    return list(names)


def named(dsns: Sequence[str]) -> dict[str, str]:
    """One connection string for each database, by its name; where two servers have one of that name, by address too."""
    places: dict[tuple[str, str, str], str] = {}
    for dsn in dsns:
        places.setdefault(_place(dsn), dsn)
    names = [name for _, _, name in places]
    return {
        name if names.count(name) == 1 else f"{host}:{port}/{name}": dsn for (host, port, name), dsn in places.items()
    }


def _place(dsn: str) -> tuple[str, str, str]:
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:  # whose service says so
        return "", "", mask(dsn)
    host, port = (str(given.get(key) or "") for key in ("host", "port"))
    return host, port, str(given.get("dbname") or given.get("service") or given.get("user") or "default")
