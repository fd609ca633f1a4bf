"""Pictures of the dashboard for the documentation, in Debian's Chromium, of a run that was made.

    python tools/screenshots.py RUN --store URL --out docs/images

RUN is a run directory or a run in the artifact store, as of `relax ui`.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

WIDE = ViewportSize(width=1400, height=1000)
PHONE = ViewportSize(width=390, height=844)
START_S, SHOWN_MS = 60, 20_000


def main() -> int:
    """Take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("run")
    parser.add_argument("--store", default="artifacts")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright, _served(options.run, options.store) as address:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        with contextlib.closing(browser):
            _take(browser, address, options.out)
    return 0


def _take(browser: Browser, address: str, out: Path) -> None:
    page = browser.new_page(viewport=WIDE, color_scheme="light")
    page.goto(address)
    _overview(page)
    page.screenshot(path=out / "dashboard.png")
    page.get_by_role("heading", name="Phases").scroll_into_view_if_needed()
    page.screenshot(path=out / "phases.png")
    page.get_by_role("link", name="Samples", exact=True).click()
    samples = page.get_by_role("table", name="Samples")
    expect(samples).to_be_visible(timeout=SHOWN_MS)
    page.get_by_label("Sorted by").select_option("advantage:desc")
    page.get_by_role("button", name="Search").click()
    expect(samples.get_by_role("columnheader", name="advantage")).to_have_attribute("aria-sort", "descending")
    page.screenshot(path=out / "samples.png")
    samples.get_by_role("link").first.click()
    expect(page.get_by_role("table", name="Figures")).to_be_visible(timeout=SHOWN_MS)
    page.screenshot(path=out / "sample.png")
    page.get_by_role("link", name="Lineage").click()
    expect(page.get_by_role("region", name="Lineage graph")).to_be_visible(timeout=SHOWN_MS)
    page.screenshot(path=out / "lineage.png")
    page.close()
    phone = browser.new_page(viewport=PHONE, color_scheme="dark", device_scale_factor=2)
    phone.goto(address)
    _overview(phone)
    phone.screenshot(path=out / "dashboard-phone.png")
    phone.close()


def _overview(page: Page) -> None:
    """Wait until the charts have been drawn."""
    expect(page.get_by_role("heading", name="Overview")).to_be_visible(timeout=SHOWN_MS)
    expect(page.locator(".u-wrap canvas").first).to_be_visible(timeout=SHOWN_MS)
    page.wait_for_load_state("networkidle")
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


@contextlib.contextmanager
def _served(run: str, store: str) -> Iterator[str]:
    """The address of a dashboard over the run, with its token."""
    relax = Path(sys.executable).parent / "relax"
    process = subprocess.Popen([relax, "ui", run, "--store", store, "--port", "0"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        if not address:
            raise SystemExit(f"relax ui {run} did not start (exit code {process.wait(START_S)})")
        yield address
    finally:
        process.terminate()
        process.wait(START_S)


if __name__ == "__main__":
    raise SystemExit(main())
