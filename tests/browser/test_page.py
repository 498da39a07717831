"""The page of `--emit html` in a real browser: nothing fails, nothing is loaded, all of it works.

`pytest tests/browser --update-golden` takes the picture of the README anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lmc.commands.counting import CHARACTERS
from lmc.commands.page import page_of
from lmc.commands.source import load_program
from tests.commands import call

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "images" / "judge.png"
DESKTOP, PHONE = (1280, 900), (390, 844)

Open = Callable[..., "Page"]


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of examples/judge.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        program = load_program("examples/judge.py")
        path = tmp_path_factory.mktemp("page") / "judge.html"
        path.write_text(page_of(program.compile(), CHARACTERS), encoding="utf-8")
    return path


@pytest.fixture
def opened(browser: Browser, judge: Path) -> Iterator[Open]:
    """Opens a page in a window; checks at the end that it said nothing and loaded nothing."""
    heard: list[str] = []
    loaded: list[str] = []
    contexts = []

    def opens(size: tuple[int, int] = DESKTOP, path: Path = judge, dark: bool = False) -> Page:
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if dark else "light",
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(5000)
        page.on("console", lambda message: heard.append(message.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on("request", lambda request: loaded.append(request.url))
        page.goto(path.as_uri())
        return page

    yield opens
    for context in contexts:
        context.close()
    assert heard == []
    assert all(url.startswith("file:") and url.endswith(".html") for url in loaded), loaded


def boxes(page: Page, kind: str = "") -> int:
    return page.locator(f".drawing:visible .box{kind}").count()


def test_what_a_reader_sees(opened: Open, tmp_path: Path, update_golden: bool) -> None:
    page = opened()
    assert page.locator("h1").inner_text() == "judge"
    for part in ("#passes table", ".drawing:visible svg", "#prompts .tree", ".timeline .bar"):
        assert page.locator(part).first.is_visible(), part
    assert page.locator(".tree li").count() == 6
    assert page.locator(".drawing:visible").count() == 1
    assert page.locator("pre.text:visible").count() == 1
    start = page.locator(".drawing:visible .box.lm-start").bounding_box()
    frame = page.locator("#graphs").bounding_box()
    assert start is not None
    assert frame is not None
    assert frame["x"] < start["x"] < frame["x"] + frame["width"], "the graph's beginning is shown"
    page.screenshot(path=tmp_path / "desktop.png")
    assert (tmp_path / "desktop.png").stat().st_size > 20_000
    if update_golden:
        page.get_by_role("button", name="hoist-prefix").click()
        top, low = (page.locator(part).bounding_box() for part in ("#passes", "#graph .beside"))
        assert top is not None
        assert low is not None
        height = low["y"] + low["height"] + 12 - top["y"]
        clip = {"x": 0, "y": top["y"] - 8, "width": DESKTOP[0], "height": height}
        page.screenshot(path=PICTURE, full_page=True, clip=clip)  # type: ignore[arg-type]
    assert PICTURE.stat().st_size < 300_000


def test_passes_change_the_graph(opened: Open) -> None:
    page = opened()
    last = boxes(page)
    page.get_by_role("button", name="as traced").click()
    assert page.locator("#stage-name").inner_text() == "as traced"
    assert boxes(page) != last
    assert page.locator("#before").is_disabled()
    page.get_by_role("button", name="hoist-prefix").click()
    assert boxes(page, ".lm-prefill.new") == 2
    stroke = "element => getComputedStyle(element).stroke"
    prefill = page.locator(".drawing:visible .box.lm-prefill.new rect").first
    marked = prefill.evaluate(stroke)
    assert marked != page.locator(".drawing:visible .box.lm-start rect").evaluate(stroke)
    assert "+     %s10' = lm.prefill" in page.locator("pre.text:visible").inner_text()
    page.locator("#before").click()
    assert boxes(page, ".lm-prefill") == 0
    page.locator("#after").click()
    assert boxes(page, ".lm-prefill") == 2


def test_the_keyboard_is_enough(opened: Open) -> None:
    page = opened()
    page.get_by_role("button", name="as traced").focus()
    for name in ("canonicalize", "cse"):
        page.keyboard.press("ArrowDown")
        assert page.locator("#stage-name").inner_text() == f"after {name}"
        assert page.locator(":focus").inner_text() == name
    page.keyboard.press("ArrowUp")
    assert page.locator("#stage-name").inner_text() == "after canonicalize"
    page.locator("#before").focus()
    page.keyboard.press("Enter")
    assert page.locator("#stage-name").inner_text() == "before canonicalize"
    page.locator("#graphs").focus()
    assert page.locator(":focus").get_attribute("id") == "graphs"


def test_a_line_and_its_nodes_light_up_together(opened: Open) -> None:
    page = opened()
    page.locator(".source li", has_text="lmc.select").focus()
    lit = page.locator(".drawing:visible .box.hit")
    assert lit.count() == 1
    assert "select related" in lit.text_content()  # type: ignore[operator]
    page.locator(".drawing:visible .box.lm-start").hover()
    assert page.locator(".source li.hit").count() <= 1
    page.locator(".drawing:visible .box.lm-select").hover()
    assert "lmc.select" in page.locator(".source li.hit").inner_text()


def test_it_fits_a_phone_and_the_dark(opened: Open, tmp_path: Path) -> None:
    page = opened(PHONE, dark=True)
    width = "[document.documentElement.scrollWidth, innerWidth]"
    needed, there = page.evaluate(width)
    assert needed <= there
    page.get_by_role("button", name="hoist-prefix").click()
    assert boxes(page, ".lm-prefill.new") == 2
    page.screenshot(path=tmp_path / "phone.png", full_page=True)
    assert (tmp_path / "phone.png").stat().st_size > 20_000
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    other = opened().evaluate("getComputedStyle(document.body).backgroundColor")
    assert back != other


def test_what_a_program_says_is_not_run(opened: Open, tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    path.write_text(
        "import lmc\n@lmc.jit\ndef p(s):\n"
        "    s += '</script><script>document.title = \"taken\"</script><img onerror=alert()>'\n"
        "    s += lmc.gen('\"><b>', 3)\n",
        encoding="utf-8",
    )
    out = tmp_path / "p.html"
    out.write_text(page_of(load_program(str(path)).compile()), encoding="utf-8")
    page = opened(path=out)
    assert page.title() == "p · lmc"
    assert "</script><script>" in page.locator(".tree").inner_text()


def test_the_page_of_a_run(opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    rows, out = tmp_path / "rows.jsonl", tmp_path / "run.html"
    rows.write_text('{"document": "Adana is a city."}\n{"document": "Bergen, too."}\n', "utf-8")
    run = ["run", "examples/json_extract.py:card", "--model", "fake", "--batch", str(rows)]
    done = call(*run, "-o", str(tmp_path / "out"), "--report", str(out))
    assert done.exit_code == 0, done.stderr
    page = opened(PHONE, path=out)
    for part in ("#batch .tree li", "#time .bar.gen", "#run table", "#constraints svg.automaton"):
        assert page.locator(part).first.is_visible(), part
    needed, there = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert needed <= there
    bar = page.locator("#time .bar.gen").first
    bar.focus()
    assert page.locator(".source li.hit").count() == 1
