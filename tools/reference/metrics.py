"""The page of metrics, from what the service itself answers to a scrape."""

from __future__ import annotations

from pgtrickle.monitor.metrics import CatalogMetrics
from tools.reference import markdown

_SUFFIX = {"counter": "_total", "histogram": "_bucket, _sum, _count"}


def page(dsn: str) -> str:
    rows = []
    collector = CatalogMetrics(dsn)
    families = list(collector.collect())
    collector._connection().close()  # which it keeps for the next scrape
    for family in families:
        names = [f"`{family.name}{each}`" for each in _SUFFIX.get(family.type, "").split(", ")]
        labels = ", ".join(f"`{each}`" for each in getattr(family, "_labelnames", ()))
        rows.append((", ".join(names), family.type, labels, family.documentation))
    return markdown.page(
        "Metrics",
        "`pgtrickle run --metrics-port 9187` answers `/metrics` for Prometheus, `/healthz` (200 while the process"
        " lives) and `/readyz` (503 while the database cannot be asked). It listens on 127.0.0.1 unless"
        " `--metrics-host` names another address. Metrics are read from the catalog at each scrape, so they are"
        " right after a restart too. All have the label `database` as well, since a process may serve several.",
        markdown.table(("metric", "type", "labels", "meaning"), rows),
        "The directory `monitoring/` of the source has a dashboard for Grafana and alert rules for Prometheus.",
    )
