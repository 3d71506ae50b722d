"""The dashboard as people have it: a real service, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pgtrickle import embedded
from tests.conftest import fresh_database
from tests.monitor.test_metrics import free_port
from tests.refresh.oracle import differing
from tests.service.running import running
from tests.service.serving import Served
from tests.web.browser import Browser, Chromium, chromium, needs_chromium

pytestmark = needs_chromium
TOKEN = "a-token-of-the-tests"
SMALL = {"postgres_rows": "100000", "web_token": TOKEN}
"""Tables of this size need no Spark."""
EVIL = "<img src=x onerror=\"window.bitten='name'\">"
EVIL_SOURCE = "<script>window.bitten='source'</script>"
EVIL_QUERY = f"SELECT v, '</pre><script>window.bitten=''query''</script>' AS note FROM public.\"{EVIL_SOURCE}\""
QUERY = "SELECT region, sum(amount) AS total FROM public.orders GROUP BY region"


@pytest.fixture(scope="module")
def served(server18: embedded.Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, str]]:
    """A service with its dashboard, a few tables, and one whose names and errors are markup."""
    port = free_port()
    place = tmp_path_factory.mktemp("web")
    with fresh_database(server18) as dsn, running(dsn, place, "--web", f"127.0.0.1:{port}", **SMALL) as service:
        service.await_event("lease_taken")
        shop = Served(dsn, service)
        try:
            _fill(shop)
            yield shop, f"http://127.0.0.1:{port}/"
        finally:
            shop.conn.close()


def _fill(shop: Served) -> None:
    shop.run(
        "CREATE TABLE public.orders (id int PRIMARY KEY, region text, amount int)",
        "INSERT INTO public.orders SELECT n, 'r' || n % 3, n FROM generate_series(1, 30) AS n",
        f'CREATE TABLE public."{EVIL_SOURCE}" (v text)',
        f"INSERT INTO public.\"{EVIL_SOURCE}\" VALUES ('1')",
    )
    shop.create("public.totals", QUERY, schedule="1h", mode="AUTO")
    shop.create("public.highest", "SELECT max(total) AS most FROM public.totals", schedule="1h", mode="AUTO")
    escaped = EVIL.replace('"', '""')
    shop.create(f'public."{escaped}"', EVIL_QUERY.replace("SELECT v", "SELECT v::int"), schedule="1h", mode="AUTO")
    shop.run(f"INSERT INTO public.\"{EVIL_SOURCE}\" VALUES ('<b onclick=window.bitten=1>no number</b>')")
    request = shop.one("SELECT pgtrickle.refresh_stream_table(%s)", f'public."{escaped}"')
    shop.until(
        lambda: shop.one("SELECT state FROM pgtrickle.pgt_requests WHERE id = %s", request) == "FAILED", "it fails"
    )


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with chromium() as found:
        yield found


@contextmanager
def opened(browser: Chromium, url: str, *, width: int = 1280, dark: bool = False) -> Iterator[Browser]:
    """The page, once the token was given."""
    with browser.page() as page:
        page.shape(width, 900, dark=dark)
        page.go(url)
        page.until("document.querySelector('#ask')?.open")
        page.run(f"document.getElementById('token').value = {TOKEN!r}")
        page.run("document.querySelector('#ask button[value=go]').click()")
        page.until("document.querySelector('table.cards tbody tr')")
        yield page


def test_the_page_shows_what_goes_on(browser: Chromium, served: tuple[Served, str]) -> None:
    shop, url = served
    with opened(browser, url) as page:
        text = page.text
        for wanted in ("Who reads what", "public.totals", "highest", "up to date", "service runs", "triggers"):
            assert wanted in text or wanted.removeprefix("public.") in text, wanted
        drawn = page.run("[...document.querySelectorAll('svg .title')].map(each => each.textContent)")
        assert {"orders", "totals", "highest"} <= set(drawn)
        lines = page.run("document.querySelectorAll('.dag .edge').length")
        assert lines == 3
        assert not page.run("'bitten' in window"), "what names say is never run"
        assert page.run("document.querySelectorAll('main script, main img, main b[onclick]').length") == 0
        assert EVIL[:20] in text
        assert "invalid input syntax for type integer" in text
        assert "<b onclick=window.bitten=1>" in text, "shown as it is"
        assert "correct the data or the query" in text
        page.run("[...document.querySelectorAll('td.name a')].find(a => a.textContent.includes('img')).click()")
        page.until("document.querySelector('h1')?.textContent.startsWith('public.<img')")
        assert "</pre><script>" in page.text
        assert not page.run("'bitten' in window")
        assert {re.sub(r"^(http://[^/]+/).*", r"\1", each) for each in page.asked_for} == {url}, (
            "nothing from elsewhere"
        )
        assert [each for each in page.logged if "401" not in each] == [], "the first question had no token"
        assert TOKEN not in page.run("location.href")
        assert not any(TOKEN in each for each in page.asked_for)
        assert page.run("localStorage.length") == 0
    assert TOKEN not in shop.service.log


def test_a_wrong_token_is_asked_for_again(browser: Chromium, served: tuple[Served, str]) -> None:
    _, url = served
    with browser.page() as page:
        page.go(url)
        page.until("document.querySelector('#ask')?.open")
        assert page.run("document.querySelector('table.cards') === null"), "nothing is shown without it"
        page.run("document.getElementById('token').value = 'not the token'")
        page.run("document.querySelector('#ask button[value=go]').click()")
        page.until("document.querySelector('#wrong').textContent.includes('not the right one')")
        assert not page.run("document.querySelector('#unlock').hidden"), "for who has closed the dialog"
        page.run(f"document.getElementById('token').value = '{TOKEN}'")
        page.run("document.querySelector('#ask button[value=go]').click()")
        page.until("document.querySelector('table.cards')")
        assert page.run("document.querySelector('#unlock').hidden")


def test_it_steers(browser: Chromium, served: tuple[Served, str]) -> None:
    shop, url = served

    def status() -> object:
        return shop.one("SELECT status FROM pgtrickle.pgt_stream_tables WHERE pgt_name = 'totals'")

    with opened(browser, url) as page:
        page.run("[...document.querySelectorAll('td.name a')].find(a => a.textContent === 'totals').click()")
        page.until("document.querySelector('[data-key=do-suspend]')")
        page.run("document.querySelector('[data-key=do-suspend]').click()")
        page.until("document.querySelector('[data-key=do-resume]')")
        assert status() == "SUSPENDED"
        assert "suspended" in page.text
        page.run("document.querySelector('[data-key=do-resume]').click()")
        page.until("document.querySelector('[data-key=do-suspend]')")
        assert status() == "ACTIVE"
        shop.run("INSERT INTO public.orders VALUES (100, 'new', 7)")
        page.run("document.querySelector('[data-key=do-refresh]').click()")
        page.until("document.querySelector('#said').textContent.includes('DIFFERENTIAL')")
        assert not differing(shop.conn, "public.totals", QUERY)
        page.until("document.querySelector('main').innerText.includes('+1 −0')")
        page.run("document.querySelector('[data-key=explain]').click()")
        page.until("document.querySelector('[data-key=plan]')?.textContent.includes('delta plan')")


def test_a_keyboard_is_enough(browser: Chromium, served: tuple[Served, str]) -> None:
    _, url = served
    with opened(browser, url) as page:
        for _ in range(30):
            page.press("Tab", 9)
            if page.run(
                "document.activeElement.closest('svg a')?.getAttribute('aria-label')?.startsWith('public.totals')"
            ):
                break
        else:
            pytest.fail(page.text)
        kept = page.run("document.activeElement.getAttribute('data-key')")
        before = page.run("document.getElementById('clock').textContent")
        page.until(f"document.getElementById('clock').textContent !== {before!r}")
        assert page.run("document.activeElement.getAttribute('data-key')") == kept, (
            "it stays there when all is drawn again"
        )
        page.press("Enter", 13, "\r")
        page.until("document.querySelector('h1')?.textContent === 'public.totals'")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_on_a_phone(browser: Chromium, served: tuple[Served, str], tmp_path: Path, dark: bool) -> None:
    _, url = served
    with opened(browser, url, width=375, dark=dark) as page:
        for link in ("#/", page.run("document.querySelector('td.name a').getAttribute('href')")):
            page.run(f"location.hash = {link!r}")
            page.until("document.querySelector('.card')")
            assert page.run("document.documentElement.scrollWidth") == 375, link
            wide = "[...document.querySelectorAll('table')].filter(t => t.getBoundingClientRect().right > 375).length"
            assert page.run(wide) == 0, link
            ground = page.run("getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, re.findall(r"\d+", ground))) < 200) == dark
            page.picture(tmp_path / "page.png")
            assert (tmp_path / "page.png").stat().st_size > 5000


def test_several_databases(browser: Chromium, server18: embedded.Server, tmp_path: Path) -> None:
    """What is wrong in another one is told; an address names one for good."""
    port = free_port()
    with fresh_database(server18) as first, fresh_database(server18) as second:
        both = ("--dsn", first, "--dsn", second, "--web", f"127.0.0.1:{port}")
        with running("", tmp_path, *both, **SMALL) as service:
            service.await_event("lease_taken", 2)
            for dsn, name in ((first, "calm"), (second, "paused")):
                shop = Served(dsn, service)
                shop.run("CREATE TABLE public.t (id int PRIMARY KEY)")
                shop.create(f"public.{name}", "SELECT id FROM public.t", schedule="1h")
                if name == "paused":
                    shop.ask("pause_stream_table('public.paused')")
                shop.conn.close()
            with opened(browser, f"http://127.0.0.1:{port}/") as page:
                page.until("document.querySelector('#elsewhere a')?.textContent.includes('1 thing to look at')")
                assert "calm" in page.text
                page.run("document.querySelector('#elsewhere a').click()")
                page.until("document.querySelector('td.name a')?.textContent === 'paused'")
                page.until("document.querySelector('#elsewhere').hidden")
                page.run("document.querySelector('td.name a').click()")
                page.until("document.querySelector('h1')?.textContent === 'public.paused'")
                page.run("location.reload()")
                page.until("performance.getEntriesByType('navigation')[0].type === 'reload'")
                page.until("document.querySelector('h1')?.textContent === 'public.paused'")
                page.until("document.querySelector('#database select')?.value === '1'")
                page.run("document.querySelector('.brand').click()")
                page.until("document.querySelector('td.name a')?.textContent === 'paused'")
                page.run("history.go(-3)")
                page.until("document.querySelector('td.name a')?.textContent === 'calm'")


def test_a_service_that_is_gone_is_told(browser: Chromium, served: tuple[Served, str]) -> None:
    """The last one: the service is killed."""
    shop, url = served
    with opened(browser, url) as page:
        shop.service.kill()
        page.until("document.getElementById('problem').textContent.includes('does not answer')")
        assert "totals" in page.text, "what was seen last stays"
