"""Reports in headless Chromium: what a person sees and does. Screens are left in build/ui for people to look at."""

import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
except ImportError:
    webdriver = None

ROOT = Path(__file__).parent.parent.parent
SCREENS = ROOT / "build" / "ui"
pytestmark = [pytest.mark.ui, pytest.mark.timeout(600)]

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")


def why_not():
    if CHROMIUM is None or DRIVER is None:
        return "there is no Chromium with its driver (Debian: apt install chromium chromium-driver)"
    return "" if webdriver is not None else "selenium is not installed (pip install 'bothways[ui]')"


if why_not():
    pytest.skip(why_not(), allow_module_level=True)

PROGRAM = """
import torch
import torch.nn.functional as F

scale = 2.0


@torch.compile
def loss_of(x, w, train):
    h = F.gelu(x @ w) * scale
    print("largest", float(h.max()))
    h = F.layer_norm(h, h.shape[-1:])
    if train:
        h = F.dropout(h, 0.1)
    return (h * h).sum()


w = torch.randn(256, 256, requires_grad=True)
for rows in (128, 128, 192):
    loss_of(torch.randn(rows, 256), w, True).backward()
"""


@pytest.fixture(scope="session")
def browser():
    options = Options()
    options.binary_location = CHROMIUM
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1440,900"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


def made(folder, text, *options):
    """The report of a program."""
    (folder / "program.py").write_text(textwrap.dedent(text))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, "-m", "bothways", "report", "-o", "report.html", *options, "program.py"],
        cwd=folder, env=environment, check=True, capture_output=True,
    )  # fmt: skip
    return folder / "report.html"


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    return made(tmp_path_factory.mktemp("report"), PROGRAM, "--time")


class Page:
    """A report that is open."""

    def __init__(self, browser, path, section="overview", theme="light"):
        self.browser = browser
        browser.get("about:blank")
        browser.get(f"{path.as_uri()}?theme={theme}#{section}")
        self.wait("nav a.on")

    def wait(self, selector, seconds=20):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = self.all(selector)
            if found:
                return found[0]
            time.sleep(0.02)
        raise AssertionError(f"there is no {selector}")

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector):
        return [found.text for found in self.all(selector)]

    def press(self, *keys):
        self.browser.switch_to.active_element.send_keys(*keys)

    def screen(self, name):
        SCREENS.mkdir(parents=True, exist_ok=True)
        time.sleep(0.3)
        self.browser.save_screenshot(str(SCREENS / f"{name}.png"))

    def is_quiet(self):
        """Whether the browser has nothing to complain of, and has asked no network for anything."""
        complaints = [entry["message"] for entry in self.browser.get_log("browser")]
        asked = [entry["message"] for entry in self.browser.get_log("performance")]
        asked = [message for message in asked if '"Network.requestWillBeSent"' in message]
        return complaints == [] and not any('"url":"http' in message for message in asked)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_section_opens_without_a_complaint(browser, report, theme):
    for section in "overview source timeline recompilations breaks graphs kernels guards memory time".split():
        page = Page(browser, report, section, theme)
        page.wait("main h1")
        page.screen(f"{section}-{theme}")
        assert page.is_quiet(), section


def test_lines_have_the_colours_of_what_became_of_them(browser, report):
    page = Page(browser, report, "source")
    kinds = {row.get_attribute("class").split()[1] for row in page.all(".row")}
    assert {"s-kernel", "s-break", "s-guard"} <= kinds


def test_a_break_is_under_its_line_with_reason_and_hint(browser, report):
    page = Page(browser, report, "source")
    notes = page.texts(".inline")
    assert any("print() writes output" in note and "Print outside" in note for note in notes)
    page.browser.execute_script("document.querySelector('.row.s-break').click()")
    assert any("print() writes output" in note for note in page.texts("#detail .note.bad"))
    page.screen("a-break")


def test_a_recompilation_shows_what_the_new_program_assumes(browser, report):
    page = Page(browser, report, "recompilations")
    assert page.all(".diff .plus") and page.all(".diff .minus")
    assert any("shape" in text for text in page.texts(".diff .minus"))
    page.screen("a-recompilation")


def test_a_kernel_shows_its_code_members_and_times(browser, report):
    page = Page(browser, report, "kernels/0", "dark")
    panel = page.wait("#detail .listing")
    assert "kernel_" in panel.text and "for (int64_t" in panel.text
    assert "program.py:" in page.wait("#detail li a").text
    assert "GB/s" in page.all("#detail p")[0].text
    page.screen("a-kernel")


def test_links_lead_from_lines_to_kernels_and_back(browser, report):
    page = Page(browser, report, "source")
    page.browser.execute_script("document.querySelector('.row.s-kernel').click()")
    page.wait("#detail a[href^='#kernels/']").click()
    page.wait("#detail .listing")
    page.wait("#detail li a[href^='#source/']").click()
    assert page.wait(".row.on") and "source/" in page.browser.current_url


def test_graphs_are_drawn_and_written(browser, report):
    page = Page(browser, report, "graphs")
    assert page.wait(".gnode") and page.all(".canvas path")
    page.wait(".gnode").click()
    assert page.wait("#detail h3").text
    page.screen("a-graph")
    next(button for button in page.all(".seg button") if button.text == "text").click()
    assert any(" = " in text for text in page.texts(".vlist .v") or [page.wait(".vlist .v").text])
    assert page.is_quiet()


def test_search_finds_lines_operations_kernels_and_guards(browser, report):
    page = Page(browser, report)
    page.press("/")
    assert page.browser.switch_to.active_element.get_attribute("id") == "search"
    wanted = {"layer_norm(h": "line", "kernel_ gelu": "kernel", "scale == 2.0": "guard", "gelu forward": "operation"}
    for words, kind in wanted.items():
        field = page.wait("#search")
        field.clear()
        field.send_keys(words)
        assert kind in page.texts("#found .what"), words
    field.send_keys(Keys.ENTER)
    page.wait("#detail h3")


def test_it_can_be_used_by_keys_alone(browser, report):
    page = Page(browser, report)
    body = page.wait("body")
    body.send_keys("2")
    page.wait("nav a.on[data-id=source]")
    page.wait(".row.has")
    body.send_keys("j")
    page.press(Keys.ENTER)
    assert page.wait("#detail:not([hidden]) h3")
    page.press(Keys.ESCAPE)
    assert page.all("#detail[hidden]")
    before = page.wait("html").get_attribute("data-theme")
    page.press("t")
    assert page.wait("html").get_attribute("data-theme") != before
    page.press("?")
    assert "search" in page.wait("#detail").text


GPT = (Path(__file__).parent / "gpt.py").read_text()


@pytest.fixture(scope="session")
def large(tmp_path_factory):
    return made(tmp_path_factory.mktemp("gpt"), GPT)


def test_a_step_of_a_gpt_of_twelve_layers_opens_fast_and_is_small(browser, large):
    assert large.stat().st_size < 5 << 20
    page = Page(browser, large)
    taken = page.browser.execute_script("return performance.now()")
    assert taken < 2000
    page.screen("gpt-overview")
    for section in ("source", "graphs", "graphs/0/2000", "kernels", "guards"):
        page = Page(browser, large, section)
        page.wait("main h1")
        page.screen(f"gpt-{section.replace('/', '-')}")
        assert page.is_quiet()
    assert len(page.all("main *")) < 60000
    drawn = Page(browser, large, "graphs")
    assert "nodes" in drawn.wait(".bar-row").text and 0 < len(drawn.all(".gnode")) < 500
