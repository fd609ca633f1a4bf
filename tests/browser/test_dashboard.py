"""The dashboard as a person meets it: in Chromium, on the files of real recorders."""

import re
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from conftest import HOSTILE, PER_STEP, STEPS, TOKEN, WITH_MEDIA, Watched, record, serving
from playwright.sync_api import Browser, Route, expect

pytestmark = pytest.mark.browser


def test_a_finished_run(watched: Watched) -> None:
    page = watched.page
    expect(page.get_by_role("status", name="State")).to_have_text(f"finished, step {STEPS - 1}")
    expect(page.get_by_role("img", name=re.compile(r"^Reward: .* 0\.\d+ at step 39"))).to_be_visible()
    expect(page.get_by_role("img", name="Trained samples by lag in weight versions: 0: 160, 1: 480")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("What each role did"))).to_be_visible()
    expect(page.get_by_role("table", name="Engines")).to_contain_text("http://127.0.0.1:31000")  # those that it had
    expect(page.get_by_role("table", name="Events")).to_contain_text("engine quarantined")
    gap = page.get_by_role("table", name="Events").get_by_role("row", name="metrics service")
    expect(gap).to_contain_text("seconds: 4, reason: no service")


def test_a_live_run_is_followed(watched: Watched, root: Path) -> None:
    page = watched.page
    run = record(root / "runs" / "live")
    run.add_step()
    page.reload()
    page.get_by_label("Run", exact=True).select_option("live")
    expect(page.get_by_role("status", name="State")).to_have_text("running, step 0")
    expect(page.get_by_role("table", name="Engines")).to_contain_text("http://127.0.0.1:31000")
    for _ in range(4):
        run.add_step()
    expect(page.get_by_role("status", name="State")).to_have_text("running, step 4")
    expect(page.get_by_role("img", name=re.compile("at step 4")).first).to_be_visible()
    run.journal.state({"status": "finished"})
    expect(page.get_by_role("status", name="State")).to_have_text("finished, step 4")


def test_a_server_that_dies_is_asked_until_it_is_back_and_the_gap_is_marked(browser: Browser, root: Path) -> None:
    run = record(root / "runs" / "interrupted")
    run.add_step()
    page = browser.new_page()
    with serving(root) as address:
        page.goto(f"{address}#token={TOKEN}")
        page.goto(f"{address}#/?run=interrupted")
        expect(page.get_by_role("status", name="State")).to_have_text("running, step 0")
    expect(page.get_by_role("status", name="State")).to_contain_text("no answer since")
    run.add_step()
    with serving(root, urlsplit(address).port or 0):
        expect(page.get_by_role("status", name="State")).to_have_text("running, step 1")
        notes = page.get_by_role("status", name="Notes")
        expect(notes).to_contain_text(re.compile(r"did not answer from \d\d:\d\d:\d\d to"))
        expect(page.get_by_role("img", name=re.compile("^Reward: .* at step 1"))).to_be_visible()
        notes.get_by_role("button", name="Dismiss").click()
        expect(notes).to_be_empty()
    page.close()


def test_the_address_keeps_the_run(watched: Watched) -> None:
    page = watched.page
    page.goto(page.url.partition("#")[0] + "#/config?run=second")
    expect(page).to_have_title("Configuration – second")
    page.reload()
    expect(page).to_have_title("Configuration – second")
    expect(page.get_by_label("Run", exact=True)).to_have_value("second")
    page.get_by_role("link", name="Overview").click()
    expect(page).to_have_title("Overview – second")


def test_samples_are_filtered_and_opened(watched: Watched) -> None:
    page = watched.page
    page.get_by_role("link", name="Samples", exact=True).click()
    expect(page.get_by_text(f"{STEPS * PER_STEP} samples")).to_be_visible()
    page.get_by_label("Filters, joined by &").fill("step=3 & response~script")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_text("1 samples, 1 to 1")).to_be_visible()
    page.get_by_role("link", name="53", exact=True).click()
    expect(page.get_by_role("heading", name="Sample 53 of step 3")).to_be_visible()
    expect(page.locator("#response")).to_have_text(HOSTILE)  # as text
    page.get_by_label("coloured by").select_option("advantages")
    tokens = page.locator("#tokens span")
    colours = tokens.evaluate_all("spans => new Set(spans.map(s => getComputedStyle(s).backgroundColor)).size")
    assert colours > 3
    expect(page.locator("#tokens .masked")).to_have_count(1)
    expect(page.get_by_role("table", name="Samples of the same prompt").get_by_role("row")).to_have_count(5)


def test_images_are_seen_and_audio_plays(watched: Watched) -> None:
    page = watched.page
    page.goto(page.url.partition("#")[0] + f"#/sample?step={WITH_MEDIA // PER_STEP}&index={WITH_MEDIA}")
    image = page.get_by_role("img", name="image 1 of the prompt")
    expect(image).to_be_visible()
    expect(image).to_have_js_property("naturalWidth", 12)
    expect(image).to_have_js_property("naturalHeight", 9)
    expect(page.get_by_text("image 2 was not kept: https://example.org/no.png")).to_be_visible()
    audio = page.get_by_label("audio 1 of the prompt")
    expect(audio).to_have_js_property("duration", 1)
    expect(audio).to_have_js_property("error", None)
    asked = [url for url in watched.requests if "api/media" in url]
    assert len(asked) == 2
    assert not any("token" in url for url in asked)


def test_what_a_model_wrote_is_never_markup(watched: Watched) -> None:
    page = watched.page
    expect(page.get_by_role("table", name="Events")).to_contain_text(HOSTILE)
    page.goto(page.url.partition("#")[0] + "#/rollouts?where=response~script")
    expect(page.get_by_role("cell", name=HOSTILE)).to_be_visible()
    assert page.evaluate("window.hacked") is None
    assert page.locator("main script, main img").count() == 0


def test_a_wrong_filter_says_what_is_wrong(watched: Watched) -> None:
    page = watched.page
    page.goto(page.url.partition("#")[0] + "#/rollouts?where=rewrd>1")
    expect(page.get_by_role("alert")).to_contain_text("did you mean 'reward'?")
    watched.errors.clear()  # Chromium reports the answer 400 itself


def test_theme_and_keyboard(watched: Watched) -> None:
    page = watched.page
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Dark theme").click()
    expect(page.get_by_role("button", name="Dark theme")).to_have_attribute("aria-pressed", "true")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.reload()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.get_by_role("link", name="Samples", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Samples", exact=True)).to_be_visible()


def test_lineage_leads_to_the_dataset(watched: Watched) -> None:
    page = watched.page
    page.get_by_role("link", name="Lineage").click()
    expect(page.get_by_role("heading", name="math-model@v1")).to_be_visible()
    page.get_by_role("link", name="dataset math-prompts@v1").click()
    expect(page.get_by_role("heading", name=re.compile("math-prompts@v1"))).to_be_visible()
    expect(page.get_by_role("link", name="model math-model@v1")).to_be_visible()


@pytest.mark.parametrize(
    ("left", "asks", "wanted", "heading"),
    [
        ("", "definitions", "config", "Configuration"),
        ("rollouts", "fields", "", "Overview"),
        ("lineage", "artifacts", "", "Overview"),
        ("config", "config", "rollouts", "Samples"),
    ],
)
def test_a_page_left_before_its_answer_is_not_shown(
    watched: Watched, left: str, asks: str, wanted: str, heading: str
) -> None:
    page = watched.page
    base = page.url.partition("#")[0]
    page.goto(f"{base}#/{wanted}")
    expect(page.get_by_role("heading", level=1)).to_have_text([heading])
    held: list[Route] = []
    page.route(f"**/api/{asks}?*", lambda route: held.append(route))
    with page.expect_request(f"**/api/{asks}?*"):
        page.goto(f"{base}#/{left}")
    page.goto(f"{base}#/{wanted}")
    expect(page.get_by_role("heading", level=1)).to_have_text([heading])
    for route in held:
        route.continue_()
    page.wait_for_load_state("networkidle")
    expect(page.get_by_role("heading", level=1)).to_have_text([heading])
    expect(page).to_have_title(re.compile(f"^{heading}"))


def test_two_runs_beside_each_other(watched: Watched) -> None:
    page = watched.page
    page.get_by_role("link", name="Configuration").click()
    page.get_by_label("Beside").select_option("second")
    table = page.get_by_role("table", name="Differences")
    expect(table.get_by_role("row", name="lr")).to_contain_text("1e-05")
    expect(table.get_by_role("row", name="seed")).to_have_count(0)
    expect(page.get_by_role("img", name=re.compile(r"loss: first 0\.025, second 0\.025 at step 39"))).to_be_visible()


def test_a_phone_shows_all_without_scrolling_sideways(browser: Browser, address: str) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
    page.goto(f"{address}#token={TOKEN}")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    headings = {"rollouts": "Samples", "lineage": "Lineage", "config": "Configuration", "": "Overview"}
    for path, heading in headings.items():
        page.goto(f"{address}#/{path}")
        expect(page.get_by_role("heading", name=heading, exact=True)).to_be_visible()
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    page.close()


def test_a_wrong_token_sees_nothing(browser: Browser, address: str) -> None:
    page = browser.new_page()
    page.goto(f"{address}#token=wrong")
    expect(page.get_by_role("heading", name="Token needed")).to_be_visible()
    assert "first" not in page.content()
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.close()


@pytest.mark.parametrize(
    "path",
    [
        "api/runs",
        "api/overview?run=first",
        "api/rollouts?run=first",
        "api/lineage?ref=math-model",
        "api/media?run=first&file=0.png",
        "metrics",
        "openapi.json",
    ],
)
def test_nothing_is_answered_without_the_token(address: str, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(urllib.request.Request(address + path, headers=headers), timeout=10)


@pytest.mark.parametrize("run", ["../first", "/etc", "first/../../store", "nobody"])
def test_ids_lead_nowhere_else(address: str, run: str) -> None:
    request = urllib.request.Request(f"{address}api/config?run={run}", headers={"Authorization": f"Bearer {TOKEN}"})
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(request, timeout=10)


def test_the_page_allows_nothing_from_elsewhere(address: str) -> None:
    with urllib.request.urlopen(address, timeout=10) as answer:
        policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
