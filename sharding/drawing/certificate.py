"""Draw what is known of a copy."""

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from typing import Literal

from PIL import Image, ImageDraw, ImageFont

from sharding.drawing.map_svg import svg_text, visible

NAME = "Shard My Repo"

Tone = Literal["good", "plain", "bad"]

_COMMIT = re.compile("[0-9a-f]{40}")
_LONGEST = 24  # Characters of the name of a branch or a tag that are shown.


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the ladder of proofs: its title, and what it rests on."""

    title: str
    words: str
    is_reached: bool


@dataclass(frozen=True, slots=True)
class Certificate:
    """What is known of the repo `copy`, in words that may be anybody's. `verdict` says it in three; `tone` colours it.
    `steps` are the ladder of proofs, empty if the copy is proved wrong. The `revision` was asked for, "" for main."""

    copy: str
    verdict: str
    tone: Tone
    sentence: str
    facts: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    note: str = ""
    revision: str = ""

    @property
    def tail(self) -> str:
        """The end of its name, which is never cut: "@revision". A commit has 12 characters here."""
        if _COMMIT.fullmatch(self.revision):
            return f"@{self.revision[:12]}"
        more = "…" if self.revision[_LONGEST:] else ""
        return f"@{self.revision[:_LONGEST]}{more}" if self.revision else ""


_RIGHT: dict[Tone, str] = {"good": "#0f766e", "plain": "#55626a", "bad": "#b42318"}
_LETTER, _NARROW, _PAD, _BADGE_HEIGHT = 7.1, 4.2, 12, 20  # In pixels: letters of Verdana at 11, space, height.
_BADGE = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img" aria-label="{label}">
<title>{label}</title>
<clipPath id="r"><rect width="{width}" height="{height}" rx="3"/></clipPath>
<g clip-path="url(#r)"><rect width="{left}" height="{height}" fill="#14191c"/>\
<rect x="{left}" width="{right}" height="{height}" fill="{colour}"/></g>
<g fill="#fff" text-anchor="middle" font-family="Verdana,Geneva,DejaVu Sans,sans-serif" font-size="11">\
{texts}</g>
</svg>
"""


def draw_badge(certificate: Certificate) -> str:
    """Return the SVG of a flat badge: the name of the product, then the verdict and revision. They fit in any font."""
    verdict = visible(f"{certificate.verdict} {certificate.tail}").rstrip()
    start, texts, widths = 0, "", list[int]()
    for text in (NAME, verdict):
        width = round(sum(_NARROW if letter in " fijlrt" else _LETTER for letter in text)) + _PAD
        middle, length = start + width / 2, max(width - _PAD, 1)
        texts += f'<text x="{middle:g}" y="14" textLength="{length}">{svg_text(text)}</text>'
        start += width
        widths.append(width)
    label = svg_text(f"{NAME}: {certificate.copy}{certificate.tail}, {certificate.verdict}")
    sizes = {"width": start, "height": _BADGE_HEIGHT, "left": widths[0], "right": widths[1]}
    return _BADGE.format(**sizes, colour=_RIGHT[certificate.tone], label=label, texts=texts)


WIDTH, HEIGHT = 1200, 630  # Pixels of the picture, as link previews show it (https://ogp.me).
_GROUND, _SURFACE, _INK, _MUTED, _LINE = "#f6f7f7", "#ffffff", "#14191c", "#55626a", "#d3d9dc"
_ACCENT, _SOFT, _BRIGHT = "#0f766e", "#e3f2f0", "#14b8a6"
_BAD, _BAD_SOFT = "#b42318", "#fdeceb"
_FINE = 2  # It is painted so many times as large, then reduced, because Pillow draws shapes without smooth edges.
_COLOURS = 96  # Colours of the PNG, most of them on smooth edges: it has a third of the bytes of one with all.
_MARGIN, _GAP, _ROUND = 72, 20, 16
_TITLE, _SENTENCE, _FACTS, _NOTE = 214, 280, 330, 578
_BOX_TOP, _BOX_HEIGHT = 382, 138


def paint_certificate(certificate: Certificate) -> bytes:
    """Return a PNG of `WIDTH` by `HEIGHT` pixels in English letters. Long names are set smaller, then cut."""
    brush, inner = _Brush(), WIDTH - 2 * _MARGIN
    _paint_head(brush)
    brush.text(certificate.copy, (_MARGIN, _TITLE), (64, 32), inner, _INK, is_bold=True, tail=certificate.tail)
    if certificate.tone == "bad":
        _paint_failure(brush, certificate, inner)
    else:
        brush.text(certificate.sentence, (_MARGIN, _SENTENCE), (32, 24), inner, _MUTED)
        brush.text(" · ".join(certificate.facts), (_MARGIN, _FACTS), (32, 24), inner, _MUTED)
        each = (inner + _GAP) / max(len(certificate.steps), 1)
        for number, step in enumerate(certificate.steps):
            _paint_step(brush, step, _MARGIN + number * each, each - _GAP)
    brush.text(certificate.note, (_MARGIN, _NOTE), (24, 18), inner, _MUTED)
    return brush.finished()


class _Brush:
    def __init__(self) -> None:
        self._image = Image.new("RGB", (WIDTH * _FINE, HEIGHT * _FINE), _GROUND)
        self._draw = ImageDraw.Draw(self._image)

    def finished(self) -> bytes:
        out = BytesIO()
        small = self._image.resize((WIDTH, HEIGHT), Image.Resampling.BOX)
        small.quantize(_COLOURS, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
        return out.getvalue()

    def box(
        self, x: float, y: float, width: float, height: float, fill: str, line: str | None = None, turn: float = _ROUND
    ) -> None:
        corners = [_FINE * side for side in (x, y, x + width, y + height)]
        self._draw.rounded_rectangle(corners, turn * _FINE, fill, line, 2 * _FINE)

    def line(self, points: list[tuple[float, float]], colour: str, width: float) -> None:
        fine = [(x * _FINE, y * _FINE) for x, y in points]
        self._draw.line(fine, colour, round(width * _FINE), "curve")
        for x, y in (fine[0], fine[-1]):
            self._draw.circle((x, y), width * _FINE / 2, colour)

    def disc(self, x: float, y: float, radius: float, fill: str, line: str | None = None) -> None:
        self._draw.circle((x * _FINE, y * _FINE), radius * _FINE, fill, line, 2 * _FINE)

    def text(
        self,
        text: str,
        at: tuple[float, float],
        sizes: tuple[int, int],
        most_pixels: float,
        colour: str,
        is_bold: bool = False,
        anchor: str = "ls",
        tail: str = "",
    ) -> None:
        """Write `text` and `tail` in the largest of `sizes` in which both fit. Cut `text` where they fit in none."""
        size, smallest = sizes
        text, tail, most = _known(text), _known(tail), most_pixels * _FINE
        while size > smallest and _font(size).getlength(text + tail) > most:
            size -= 2
        font = _font(size)
        if font.getlength(text + tail) > most:
            end = bisect_right(range(len(text)), most, key=lambda end: font.getlength(f"{text[:end]}…{tail}"))
            text = f"{text[: end - 1]}…"
        x, y = (side * _FINE for side in at)
        weight = _FINE * size / 64 if is_bold else 0
        self._draw.text((x, y), text + tail, colour, font, anchor, stroke_width=weight)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size * _FINE)
    assert isinstance(font, ImageFont.FreeTypeFont), "Pillow has FreeType in all its wheels"
    return font


def _known(text: str) -> str:
    """Return `text` with a question mark for each letter that the font of Pillow lacks."""
    return "".join(letter if " " <= letter <= "~" or letter in "·…" else "?" for letter in text)


def _paint_head(brush: _Brush) -> None:
    brush.box(0, 0, WIDTH, 10, _ACCENT, turn=0)
    brush.box(_MARGIN, 58, 38, 13, _ACCENT, turn=3)
    for number in range(4):
        brush.box(_MARGIN + number * 10.2, 79, 7.4, 13, _BRIGHT, turn=2)
    brush.text(NAME, (_MARGIN + 54, 86), (30, 30), 500, _INK, is_bold=True)
    brush.text("Certificate of a copy", (WIDTH - _MARGIN, 86), (26, 26), 500, _MUTED, anchor="rs")


def _paint_step(brush: _Brush, step: Step, x: float, width: float) -> None:
    fill, line = (_SOFT, _ACCENT) if step.is_reached else (_SURFACE, _LINE)
    brush.box(x, _BOX_TOP, width, _BOX_HEIGHT, fill, line)
    middle, y = x + 42, _BOX_TOP + 50
    if step.is_reached:
        brush.disc(middle, y, 17, _ACCENT)
        brush.line([(middle - 8, y + 0.5), (middle - 2, y + 6.5), (middle + 8, y - 6)], _SURFACE, 3.5)
    else:
        brush.disc(middle, y, 17, _SURFACE, _LINE)
    brush.text(step.title, (x + 74, y + 10), (29, 18), width - 92, _INK if step.is_reached else _MUTED, step.is_reached)
    brush.text(step.words, (x + 26, y + 58), (24, 16), width - 48, _MUTED)


def _paint_failure(brush: _Brush, certificate: Certificate, width: float) -> None:
    y, height = _SENTENCE - 12, 176
    brush.box(_MARGIN, y, width, height, _BAD_SOFT, _BAD)
    brush.disc(x := _MARGIN + 74, middle := y + height / 2, 30, _BAD)
    for tilt in (1, -1):
        brush.line([(x - 10, middle - 10 * tilt), (x + 10, middle + 10 * tilt)], _SURFACE, 5)
    verdict, left, most = certificate.verdict.capitalize(), x + 62, width - 170
    brush.text(verdict, (left, middle - 8), (44, 28), most, _BAD, is_bold=True)
    brush.text(certificate.sentence, (left, middle + 40), (30, 20), most, _INK)
