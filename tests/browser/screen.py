"""A headless Chromium, and what its users would call broken: text that is cut, covered, or off the page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Frame, Page, expect, sync_playwright

PICTURES = Path(__file__).resolve().parents[2] / ".local" / "browser"
HEIGHT = 900
PATIENCE_MS = 60_000
#: MLflow opens its assistant over a third of every new visitor's window, some time after the page.
#: Reports are sandboxed, and have no storage.
_VISITED_BEFORE = """
if (origin !== 'null') localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true');
"""
#: Nothing here may call home: a closed network would refuse it, again and again.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

#: Returns every text of a document with its boxes, and whether something cuts it off.
_TEXTS = """
() => {
  const shown = element => element.checkVisibility({opacityProperty: true, visibilityProperty: true});
  // What a box shows of its content, where it hides the rest; what scrolls down is not hidden.
  const hides = (element, box) => {
    for (let at = element; at && at !== document.documentElement; at = at.parentElement) {
      if (getComputedStyle(at).overflowX === 'visible') continue;
      const frame = at.getBoundingClientRect();
      if (box.left < frame.left - 1 || box.right > frame.right + 1) return true;
    }
    return false;
  };
  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const words = node.textContent.trim(), parent = node.parentElement;
    if (!words || !parent || !shown(parent) || parent.closest('script,style,title,desc,template')) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const lines = [...range.getClientRects()].filter(box => box.width > 1 && box.height > 1);
    if (!lines.length) continue;
    const boxes = lines.map(box =>
      [box.left + scrollX, box.top + scrollY, box.right + scrollX, box.bottom + scrollY]);
    texts.push({words: words.slice(0, 60), boxes, cut: lines.some(box => hides(parent, box))});
  }
  return {texts, width: document.documentElement.clientWidth, content: document.documentElement.scrollWidth};
}
"""


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text on a page.

    :param boxes: left, top, right, bottom of each of its lines in pixels.
    :param cut: whether the element around it hides a part of it.
    """

    words: str
    boxes: tuple[tuple[float, float, float, float], ...]
    cut: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """All text of a page, and how wide the page and its content are."""

    texts: tuple[Text, ...]
    width: float
    content: float

    def problems(self) -> list[str]:
        """What a reader would complain about, in words."""
        found = [f"cut: {text.words!r}" for text in self.texts if text.cut]
        if self.content > self.width + 1:
            found.append(f"the content is {self.content:.0f} px wide, the page {self.width:.0f} px")
        found += [f"outside: {text.words!r}" for text in self.texts if self._is_outside(text)]
        pairs = _overlapping(self.texts)
        return found + [f"one over the other: {one.words!r} and {other.words!r}" for one, other in pairs]

    def _is_outside(self, text: Text) -> bool:
        return any(left < -1 or right > self.content + 1 for left, _, right, _ in text.boxes)


def _overlapping(texts: tuple[Text, ...]) -> Iterator[tuple[Text, Text]]:
    """Yield pairs of texts of which one covers a part of the other that can be seen."""
    boxes = sorted(((box, text) for text in texts for box in text.boxes), key=lambda pair: pair[0][1])
    for index, (box, text) in enumerate(boxes):
        for other_box, other in boxes[index + 1 :]:
            if other_box[1] >= box[3]:
                break
            if other is not text and _covers(box, other_box):
                yield text, other


def _covers(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    lower = min(one[3] - one[1], other[3] - other[1])
    # Line boxes are taller than letters: neighbouring lines may share some pixels.
    return width > 1.5 and height > 0.3 * lower


def layout_of(frame: Frame | Page) -> Layout:
    """Measure a page, or a page inside a page."""
    found = frame.evaluate(_TEXTS)
    texts = tuple(
        Text(words=item["words"], boxes=tuple(tuple(box) for box in item["boxes"]), cut=item["cut"])
        for item in found["texts"]
    )
    return Layout(texts=texts, width=found["width"], content=found["content"])


@dataclass
class Screen:
    """A window of one width."""

    page: Page
    width: int
    errors: list[str] = field(default_factory=list)

    def picture(self, name: str, *, whole: bool = True) -> Path:
        """Take a picture, for people to look at."""
        path = PICTURES / f"{name}-{self.width}.png"
        self.page.screenshot(path=path, full_page=whole)
        return path


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Debian's Chromium with a new profile; Playwright's own download is not needed."""
    program = shutil.which("chromium")
    if program is None:
        raise RuntimeError("There is no chromium: run `bash tests/browser/install.sh`.")
    PICTURES.mkdir(parents=True, exist_ok=True)
    # A small machine that runs a campaign is slow to draw pages.
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def new_visitor(browser: Browser, width: int) -> Iterator[BrowserContext]:
    """Return a profile that remembers nothing yet."""
    context = browser.new_context(
        viewport={"width": width, "height": HEIGHT}, locale="en-US", timezone_id="UTC"
    )
    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script(_VISITED_BEFORE)
    try:
        yield context
    finally:
        context.close()


@contextmanager
def window(visitor: BrowserContext, width: int) -> Iterator[Screen]:
    """Open a window, and hold its pages to work without an error."""
    page = visitor.new_page()
    try:
        screen = Screen(page=page, width=width)
        page.on("pageerror", lambda error: screen.errors.append(str(error)))
        yield screen
        assert screen.errors == []
    finally:
        page.close()
