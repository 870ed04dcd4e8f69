"""The page at ``/`` in a real browser: Debian's Chromium, without a window, driven by Playwright."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from e2e_http import COMP, Exchange, long_runner
from e2e_process import ServerProcess, wait_until
from e2e_starter import Starter
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Route, expect, sync_playwright

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium; on Debian: apt install chromium")

SECONDS = 30_000  # milliseconds
ENDLESS = "Tell me about the sea."  # to the tiny model
VLLM = """\
# HELP vllm:num_requests_running Number of requests.
vllm:num_requests_running{engine="0",model_name="a } b"} 2.0
vllm:num_requests_running{engine="1",model_name="a } b"} 3.0
vllm:generation_tokens_total{engine="0",model_name="m"} %d
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} %d
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.2",model_name="m"} %d
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} %d
process_start_time_seconds 1.7e+09
"""


@dataclass
class Visit:
    """A tab, and what went wrong in it."""

    page: Page
    origin: str
    problems: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    def watch(self) -> None:
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("request", self._on_request)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text}")

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith(self.origin + "/"):
            self.problems.append(f"elsewhere: {request.url}")
        self.paths.append(request.url.removeprefix(self.origin))

    def open(self) -> Page:
        self.page.goto(self.origin + "/")
        expect(self.page.locator("#state")).to_have_text("serving tiny", timeout=SECONDS)
        return self.page

    def text(self, selector: str) -> str:
        return self.page.locator(selector).last.text_content() or ""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser, server: ServerProcess) -> Iterator[Visit]:
    """Of the shared server. Nothing may go wrong."""
    with browser.new_context() as context:
        visit = Visit(context.new_page(), server.base_url)
        visit.watch()
        yield visit
        assert visit.problems == []


def ask(page: Page, question: str, max_tokens: int) -> None:
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Max tokens").fill(str(max_tokens))
    page.get_by_label("Message").fill(question)
    page.get_by_label("Message").press("Enter")


def test_an_answer_streams_in(visit: Visit) -> None:
    page = visit.open()
    page.evaluate(
        """() => {
            window.lengths = [];
            const look = () => window.lengths.push(document.querySelector(".said")?.textContent.length ?? 0);
            new MutationObserver(look).observe(document.getElementById("log"), {childList: true, subtree: true});
        }"""
    )
    ask(page, ENDLESS, 40)
    expect(page.locator(".assistant .note")).to_contain_text("40 tokens", timeout=SECONDS)
    assert visit.text(".assistant .note").endswith("cut at max tokens")
    lengths = page.evaluate("window.lengths")
    assert len({length for length in lengths if length}) > 5
    assert lengths == sorted(lengths)
    assert len(visit.text(".assistant .said")) == lengths[-1]
    # The next turn has the first one in it.
    asked: list[Any] = []

    def keep(route: Route) -> None:
        asked.append(route.request.post_data_json)
        route.continue_()

    page.route("**/v1/chat/completions", keep)
    ask(page, "And then?", 2)
    expect(page.locator(".assistant .note").last).to_contain_text("tokens", timeout=SECONDS)
    assert [turn["role"] for turn in asked[0]["messages"]] == ["user", "assistant", "user"]
    assert asked[0]["messages"][1]["content"] == visit.page.locator(".assistant .said").first.text_content()
    page.get_by_role("button", name="New chat").click()
    assert page.locator(".turn").count() == 0


def test_stop_aborts(visit: Visit, server: ServerProcess) -> None:
    page = visit.open()
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    ask(page, ENDLESS, 30_000)
    expect(page.locator(".assistant .said")).to_have_text(re.compile(".{20,}", re.DOTALL), timeout=SECONDS)
    server.wait_load(running=1)
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".assistant .note")).to_have_text("stopped", timeout=SECONDS)
    server.wait_idle(30)
    assert server.http.get("/debug/requests").json()["data"] == []


def test_what_the_server_refuses_is_said(visit: Visit) -> None:
    page = visit.open()
    ask(page, "x" * 200_000, 4)
    expect(page.locator(".assistant .note.bad")).to_contain_text("token", timeout=SECONDS)
    assert visit.text(".assistant .said") == ""
    assert visit.problems
    assert all("400" in problem for problem in visit.problems)  # the browser's own word on it
    visit.problems.clear()


def num_points(page: Page, chart: int, line: str) -> int:
    path = page.locator("#charts svg").nth(chart).locator(f"path.{line}").get_attribute("d") or ""
    return path.count("M") + path.count("L")


def test_charts_and_requests_are_live(visit: Visit, server: ServerProcess) -> None:
    page = visit.open()
    with Exchange(server, COMP, long_runner()) as exchange:
        exchange.read_events(1)
        expect(page.locator("#requests tbody tr")).to_have_count(1, timeout=SECONDS)
        expect(page.locator("#requests tbody")).to_contain_text("running", timeout=SECONDS)
        for chart, line in ((0, "first"), (0, "second"), (1, "first"), (1, "second"), (2, "first"), (3, "first")):
            wait_until(lambda: num_points(page, chart, line) > 2, 30, f"points in chart {chart}")  # noqa: B023
        label = page.locator("#charts svg").nth(1).get_attribute("aria-label")
        assert label == "Requests: running 1, waiting 0"
        rate = float((page.locator("#charts .legend .first").first.text_content() or "").split()[-1].rstrip("k"))
        assert rate > 0
    expect(page.locator("#requests tbody tr")).to_have_count(0, timeout=SECONDS)
    assert "0 running" in visit.text("#requests-note")


def test_a_page_that_nobody_sees_asks_nothing(visit: Visit) -> None:
    page = visit.open()
    hide = """(isHidden) => {
        Object.defineProperty(document, "hidden", {configurable: true, get: () => isHidden});
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(hide, True)
    page.wait_for_timeout(1500)
    num_asked = len(visit.paths)
    page.wait_for_timeout(2500)
    assert len(visit.paths) == num_asked
    page.evaluate(hide, False)
    page.wait_for_timeout(1500)
    assert len(visit.paths) > num_asked


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [340, 1200])
def test_it_fits(browser: Browser, server: ServerProcess, width: int, scheme: Any) -> None:
    with browser.new_context(viewport={"width": width, "height": 700}, color_scheme=scheme) as context:
        visit = Visit(context.new_page(), server.base_url)
        visit.watch()
        page = visit.open()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(int(part) for part in background[4:-1].split(",")) > 384) == (scheme == "light")
        assert visit.problems == []


def test_a_key_is_kept_for_the_tab_alone(browser: Browser, start: Starter[ServerProcess]) -> None:
    server = start(api_key="the-key").wait_ready()
    with browser.new_context() as context:
        visit = Visit(context.new_page(), server.base_url)
        visit.watch()
        page = visit.page
        page.goto(server.base_url)
        expect(page.locator("#state.bad")).to_contain_text("a valid API key is needed", timeout=SECONDS)
        page.wait_for_timeout(2500)
        assert visit.paths.count("/metrics") == 1  # a key that does not open it is not tried again
        page.get_by_label("API key").fill("the-key")
        page.get_by_label("API key").press("Enter")
        expect(page.locator("#state")).to_have_text("serving tiny", timeout=SECONDS)
        ask(page, ENDLESS, 5)
        expect(page.locator(".assistant .note")).to_contain_text("5 tokens", timeout=SECONDS)
        assert page.evaluate("[sessionStorage.length, localStorage.length, document.cookie]") == [1, 0, ""]
        page.reload()
        expect(page.locator("#state")).to_have_text("serving tiny", timeout=SECONDS)
        assert all("401" in problem for problem in visit.problems)
        assert page.context.new_page().evaluate("window.origin")  # another tab, which does not have it
    server.check_healthy()


def test_metrics_of_any_prefix(visit: Visit) -> None:
    page = visit.open()
    found = page.evaluate(
        """async ([before, after]) => {
            const { Snapshot, rate, quantile } = await import("/page/metrics.js");
            const [first, second] = [new Snapshot(before, 10), new Snapshot(after, 12)];
            const ttft = (q) => quantile(first, second, "time_to_first_token_seconds", q);
            return [
                second.value("num_requests_running"), second.value("process_start_time_seconds"),
                rate(first, second, "generation_tokens_total"), rate(second, first, "generation_tokens_total"),
                ttft(0.5), ttft(1), quantile(first, first, "time_to_first_token_seconds", 0.5),
            ].map((number) => (Number.isNaN(number) ? null : number));
        }""",
        [VLLM % (100, 5, 5, 5), VLLM % (300, 5, 9, 10)],
    )
    assert found[:4] == [5, 1.7e9, 100, None]
    assert found[4:] == [pytest.approx(0.1625), pytest.approx(0.2), None]
