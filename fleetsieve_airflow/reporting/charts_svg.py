"""The small pieces that charts and tables are made of: escaped text, numbers for people, SVG elements.

Pure text functions, standard library only. Every chart is a whole SVG document with presentation attributes
instead of a style sheet, so that the same text can stand in a report, in another page or in a file of its
own.
"""

from __future__ import annotations

import html
import math
import re
import unicodedata
from typing import Final

INK: Final = "#1b1f24"
MUTED: Final = "#57606a"
GRID: Final = "#d8dee4"
TICK: Final = "#8c959f"
BLUE: Final = "#0550ae"
PALE: Final = "#cfe3fa"
ORANGE: Final = "#bc4c00"
GREEN: Final = "#116329"

FONT: Final = "system-ui,'Segoe UI','DejaVu Sans',sans-serif"
#: Mean glyph width in em of the widest usual interface font (DejaVu Sans): estimated text never overflows.
EM_PER_GLYPH: Final = 0.62
BOLD_EM_PER_GLYPH: Final = 0.7

# Control characters are parse errors in HTML, and direction overrides could make a name rewrite its line.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_SMALLEST_SHARE: Final = 0.0005
_THOUSAND: Final = 1000
_ONE_LINE: Final = 24


def escape(text: object) -> str:
    """Return text that is safe as HTML or XML content and inside double-quoted attributes."""
    return html.escape(_UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", str(text)), quote=True)


def name_html(name: str) -> str:
    """Return a name that stays on one line unless it is long."""
    return f'<span class="k">{escape(name)}</span>' if len(name) <= _ONE_LINE else escape(name)


def cut(text: str, length: int) -> str:
    """Return text of at most ``length`` characters, with an ellipsis where something was left out."""
    return text if len(text) <= length else text[: max(1, length - 1)].rstrip() + "\N{HORIZONTAL ELLIPSIS}"


def number(value: float) -> str:
    """Return a number for people: four significant digits, from a thousand on whole and grouped."""
    if abs(value) >= _THOUSAND:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def percent(share: float) -> str:
    """Return a share as per cent with one decimal; what is below 1 never rounds up to 100 %."""
    if 0.0 < share < _SMALLEST_SHARE:
        return "under 0.1 %"
    value = round(100.0 * share, 1)
    if share < 1.0 - 1e-9:
        value = min(value, 99.9)
    return f"{value:,.0f} %" if value >= _THOUSAND else f"{value:g} %"


def count(quantity: int, singular: str, plural: str = "") -> str:
    """Return ``1 point`` or ``1,234 points``."""
    return f"{quantity:,} {singular if quantity == 1 else plural or singular + 's'}"


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Estimate the width of text in pixels, rather too wide than too narrow."""
    wide = sum(unicodedata.east_asian_width(glyph) in "WF" for glyph in text)
    return size * (wide + (len(text) - wide) * (BOLD_EM_PER_GLYPH if bold else EM_PER_GLYPH))


def fit(text: str, size: float, width: float, *, bold: bool = False) -> str:
    """Shorten text with an ellipsis until its estimated width fits ``width`` pixels."""
    while len(text) > 1 and text_width(text, size, bold=bold) > width:
        text = cut(text, len(text) - 1)
    return text


def nice_ceiling(value: float) -> float:
    """Return the smallest of 1, 2, 4, 5, 6, 8, 10 times a power of ten that is at least ``value`` (> 0)."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 5, 6, 8, 10) if step * power >= value * (1 - 1e-12))


def px(value: float) -> str:
    """Return a coordinate with at most one decimal: a tenth of a pixel is never seen and doubles the file."""
    return f"{round(value, 1):g}"


def svg(body: str, *, width: float, height: float, label: str) -> str:
    """Return a whole SVG document; ``label`` says in words what it shows, for those who cannot see it."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {px(width)} {px(height)}" width="{px(width)}"'
        f' height="{px(height)}" role="img" aria-label="{escape(label)}" font-family="{FONT}" font-size="11"'
        f' style="max-width:100%;height:auto;background:#fff">{body}</svg>'
    )


def group(body: str, **attributes: str) -> str:
    """Return a group of elements that share attributes."""
    return f"<g{_attributes(attributes)}>{body}</g>"


def bar(left: float, right: float, top: float, bottom: float, *, title: str = "", **attributes: str) -> str:
    """Return a rectangle as a path, the shortest form there is, with a text that browsers show on hover."""
    place = f"M{px(left)} {px(top)}H{px(right)}V{px(bottom)}H{px(left)}Z"
    return _shape(place, title, attributes)


def verticals(places: list[float], top: float, bottom: float, **attributes: str) -> str:
    """Return vertical lines as one element."""
    ends = f"{px(top)}V{px(bottom)}"
    return _shape("".join(f"M{px(x)} {ends}" for x in places), "", attributes)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: str) -> str:
    """Return a straight line."""
    return _shape(f"M{px(x1)} {px(y1)}L{px(x2)} {px(y2)}", "", attributes)


def path(
    points: list[tuple[float, float]], *, close: bool = False, title: str = "", **attributes: str
) -> str:
    """Return a path through points; ``title`` is a text that browsers show on hover."""
    steps = "L".join(f"{px(x)} {px(y)}" for x, y in points)
    return _shape(f"M{steps}{'Z' if close else ''}", title, attributes)


def rect(x: float, y: float, width: float, height: float, **attributes: str) -> str:
    """Return a rectangle."""
    return (
        f'<rect x="{px(x)}" y="{px(y)}" width="{px(width)}" height="{px(height)}"{_attributes(attributes)}/>'
    )


def label(x: float, y: float, text: str, **attributes: str) -> str:
    """Return a line of text with its baseline at ``y``."""
    return f'<text x="{px(x)}" y="{px(y)}"{_attributes(attributes)}>{escape(text)}</text>'


def _shape(place: str, title: str, attributes: dict[str, str]) -> str:
    start = f'<path d="{place}"{_attributes(attributes)}'
    return f"{start}><title>{escape(title)}</title></path>" if title else f"{start}/>"


def _attributes(attributes: dict[str, str]) -> str:
    return "".join(f' {name.replace("_", "-")}="{escape(value)}"' for name, value in attributes.items())
