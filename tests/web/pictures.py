"""Takes the pictures of the dashboard that the documents have, and others to look at: python -m tests.web.pictures DIR

docs/images has dashboard.png and dashboard-phone.png of these.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from pgtrickle import embedded
from tests.conftest import fresh_database
from tests.monitor.test_metrics import free_port
from tests.service.running import running
from tests.service.serving import Served
from tests.web.browser import Browser, Chromium, chromium

TOKEN = "a-token-for-pictures"
SETTINGS = {"postgres_rows": "100000", "web_token": TOKEN, "auto_replica_identity": "on"}
MOST = {1280: 2600, 1180: 1130, 375: 1600}
"""How much of a page is in its picture, by its width."""
SOURCES = (
    "CREATE TABLE customers (id int PRIMARY KEY, name text, region text)",
    "CREATE TABLE orders (id int PRIMARY KEY, customer int, amount numeric(10, 2), discount text)",
    "CREATE TABLE visits (id bigint PRIMARY KEY, customer int, at timestamptz)",
    (
        "INSERT INTO customers SELECT n, 'customer ' || n, (ARRAY['north', 'south', 'east', 'west'])[1 + n % 4]"
        " FROM generate_series(1, 400) AS n"
    ),
    "INSERT INTO orders SELECT n, 1 + n % 400, n % 97, '0' FROM generate_series(1, 4000) AS n",
    "INSERT INTO visits SELECT n, 1 + n % 400, now() FROM generate_series(1, 2000) AS n",
)
TABLES = (
    (
        "order_totals",
        (
            "SELECT c.region, sum(o.amount) AS total, count(*) AS n FROM orders o JOIN customers c ON c.id = o.customer"
            " GROUP BY c.region"
        ),
        "calculated",
        "AUTO",
    ),
    ("best_region", "SELECT region, total FROM order_totals ORDER BY total DESC LIMIT 1", "2s", "AUTO"),
    (
        "customer_activity",
        "SELECT customer, count(*) AS visits, max(at) AS last FROM visits GROUP BY customer",
        "2s",
        "AUTO",
    ),
    ("open_orders", "SELECT id, customer FROM orders WHERE amount > 90", "1m", "IMMEDIATE"),
    ("discounts", "SELECT id, discount::numeric AS discount FROM orders", "2s", "AUTO"),
    ("regions", "SELECT DISTINCT region FROM customers", "1h", "AUTO"),
)


def fill(shop: Served) -> None:
    shop.run(*SOURCES)
    for name, query, schedule, mode in TABLES:
        shop.create(f"public.{name}", query, schedule=schedule, mode=mode)
    shop.ask("pause_stream_table('public.regions')")
    shop.until(lambda: shop.one("SELECT bool_or(cdc_mode = 'WAL') FROM pgtrickle.pgt_change_tracking"), "WAL")
    for round_ in range(8):
        first = 10_000 + 40 * round_
        shop.run(
            f"INSERT INTO orders SELECT n, 1 + n % 400, n % 97, '0' FROM generate_series({first}, {first + 30}) AS n",
            f"INSERT INTO visits SELECT n, 1 + n % 400, now() FROM generate_series({first}, {first + 20}) AS n",
        )
        time.sleep(2.2)
    shop.run("INSERT INTO orders VALUES (99999, 7, 12.50, '10 %')")
    shop.until(
        lambda: shop.one("SELECT consecutive_errors > 0 FROM pgtrickle.pgt_stream_tables WHERE pgt_name = 'discounts'"),
        "it fails",
    )


def enter(page: Browser, url: str) -> None:
    page.go(url)
    page.until("document.querySelector('#ask')?.open")
    page.run(f"document.getElementById('token').value = {TOKEN!r}")
    page.run("document.querySelector('#ask button[value=go]').click()")
    page.until("document.querySelector('main h2')")
    time.sleep(1)


def whole(page: Browser, file: Path) -> None:
    """The page, from above."""
    page.picture(file, captureBeyondViewport=True, clip=_size(page))


def _size(page: Browser) -> dict[str, object]:
    width = page.run("document.documentElement.clientWidth")
    height = min(page.run("document.documentElement.scrollHeight"), MOST[width])
    return {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}


def take(browser: Chromium, shop: Served, url: str, place: Path) -> None:
    links = "[...document.querySelectorAll('td.name a')].find(a => a.textContent === '{}').click()"
    for dark in (False, True):
        for width, title in ((1280, "desktop"), (1180, "dashboard"), (375, "phone")):
            with browser.page() as page:
                page.shape(width, 900, dark=dark)
                enter(page, url)
                shade = "-dark" if dark else ""
                whole(page, place / f"{title}{shade}.png")
                for name in ("order_totals", "discounts"):
                    page.run("location.hash = '#/'")
                    page.until("document.querySelector('td.name a')")
                    page.run(links.format(name))
                    page.until(f"document.querySelector('h1')?.textContent === 'public.{name}'")
                    time.sleep(1)
                    whole(page, place / f"{title}{shade}-{name}.png")
                    if dark and (title, name) == ("phone", "order_totals"):
                        page.picture(place / "dashboard-phone.png")
    with browser.page() as page:
        page.shape(1280, 900)
        page.go(url)
        page.until("document.querySelector('#ask')?.open")
        page.picture(place / "token.png")
        page.run("document.getElementById('token').value = 'not the token'")
        page.run("document.querySelector('#ask button[value=go]').click()")
        page.until("document.querySelector('#wrong').textContent.includes('not the right one')")
        page.picture(place / "token-wrong.png")
    with browser.page() as page:
        page.shape(1280, 900)
        enter(page, url)
        shop.service.kill()
        page.until("document.getElementById('problem').textContent.includes('does not answer')")
        page.picture(place / "gone.png")


def empty(browser: Chromium, server: embedded.Server, place: Path) -> None:
    port = free_port()
    with (
        fresh_database(server) as dsn,
        tempfile.TemporaryDirectory() as logs,
        running(dsn, Path(logs), "--web", f"127.0.0.1:{port}", **SETTINGS) as service,
    ):
        service.await_event("lease_taken")
        with browser.page() as page:
            page.shape(1280, 900)
            enter(page, f"http://127.0.0.1:{port}/")
            page.picture(place / "empty.png")


def main(place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    port = free_port()
    with tempfile.TemporaryDirectory() as home, chromium() as browser:
        Path(home).chmod(0o711)  # for the account that PostgreSQL runs as
        server = embedded.start(data_dir=Path(home) / "postgres")
        try:
            empty(browser, server, place)
            with psycopg.connect(server.dsn, autocommit=True) as conn:
                conn.execute("CREATE DATABASE shop")
            dsn = make_conninfo(server.dsn, dbname="shop")
            with running(dsn, Path(home), "--web", f"127.0.0.1:{port}", **SETTINGS) as service:
                service.await_event("lease_taken")
                shop = Served(dsn, service)
                fill(shop)
                take(browser, shop, f"http://127.0.0.1:{port}/", place)
                shop.conn.close()
        finally:
            embedded.stop(data_dir=Path(home) / "postgres")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
