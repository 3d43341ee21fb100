"""What is known of a copy, as a badge and as a picture: what is on them, and that names stay text and fit."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from io import BytesIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sharding.drawing.certificate import HEIGHT, WIDTH, Certificate, Step, draw_badge, paint_certificate

STEPS = (Step("Claimed", "somebody says so", True), Step("Structure matches", "names", False), Step("Read", "x", False))
PLAIN = Certificate(
    "me/copy",
    "only claimed",
    "plain",
    "Claims to be a copy of acme/model at 0123456789ab.",
    ("12 files of at most 1.3 GB", "291 tensors"),
    STEPS,
    "Not checked: code.",
)
BAD = Certificate("me/copy", "does not match", "bad", "It does not match.")
GROUND, ACCENT, SOFT, RED = (246, 247, 247), (15, 118, 110), (227, 242, 240), (180, 35, 24)
SVG = "{http://www.w3.org/2000/svg}"


def painted(certificate: Certificate) -> Image.Image:
    content = paint_certificate(certificate)
    assert content.startswith(b"\x89PNG") and len(content) < 60_000
    return Image.open(BytesIO(content)).convert("RGB")


def near(colour: object, other: tuple[int, int, int]) -> bool:
    """Whether two colours look the same: a PNG of few colours may move them a little."""
    assert isinstance(colour, tuple)
    return all(abs(a - b) <= 3 for a, b in zip(colour, other, strict=True))


def share(image: Image.Image, box: tuple[int, int, int, int], colour: tuple[int, int, int]) -> float:
    part = image.crop(box)
    counts = part.getcolors(part.width * part.height) or []
    return sum(many for many, each in counts if near(each, colour)) / (part.width * part.height)


def test_a_badge_says_the_name_of_the_product_and_the_verdict_to_eyes_and_to_screen_readers() -> None:
    svg = ET.fromstring(draw_badge(PLAIN))
    assert [text.text for text in svg.iter(f"{SVG}text")] == ["Shard My Repo", "only claimed"]
    assert (svg.get("role"), svg.get("aria-label")) == ("img", "Shard My Repo: me/copy, only claimed")
    title = svg.find(f"{SVG}title")
    assert title is not None and title.text == svg.get("aria-label")


def test_the_texts_of_a_badge_lie_inside_their_halves_in_any_font() -> None:
    for verdict in ("only claimed", "structure matches", "every byte read", "read, with caveats", "does not match"):
        svg = ET.fromstring(draw_badge(replace(PLAIN, verdict=verdict)))
        _, left, right = (float(rect.get("width") or 0) for rect in svg.iter(f"{SVG}rect"))
        assert float(svg.get("width") or 0) == left + right
        lengths = [float(text.get("textLength") or 0) for text in svg.iter(f"{SVG}text")]
        middles = [float(text.get("x") or 0) for text in svg.iter(f"{SVG}text")]
        assert middles == [left / 2, left + right / 2]
        assert 0 < lengths[0] < left and 0 < lengths[1] < right


def test_each_tone_of_a_badge_has_its_colour() -> None:
    fills = {draw_badge(replace(PLAIN, tone=tone)).count("#b42318") for tone in ("good", "plain")}  # type: ignore[arg-type]
    assert fills == {0} and draw_badge(BAD).count("#b42318") == 1
    assert "#0f766e" in draw_badge(replace(PLAIN, tone="good")) and "#0f766e" not in draw_badge(PLAIN)


@pytest.mark.parametrize("reached", [1, 2, 3])
def test_the_steps_that_are_reached_are_marked_and_no_others(reached: int) -> None:
    steps = tuple(replace(step, is_reached=number < reached) for number, step in enumerate(STEPS))
    image = painted(replace(PLAIN, steps=steps))
    assert image.size == (WIDTH, HEIGHT) == (1200, 630)
    for number in range(3):
        left = 72 + number * 359
        box = (left + 4, 386, left + 334, 516)
        assert (share(image, box, SOFT) > 0.5) == (number < reached), number
        assert (share(image, (left + 24, 414, left + 60, 450), ACCENT) > 0.4) == (number < reached), number


def test_a_copy_that_does_not_match_is_red_and_has_no_step() -> None:
    image = painted(BAD)
    assert share(image, (72, 268, 1128, 444), RED) > 0.01
    assert share(image, (0, 20, 1200, 630), SOFT) == 0
    assert share(painted(PLAIN), (0, 0, 1200, 630), RED) == 0


@pytest.mark.parametrize(("length", "tone"), [(40, "plain"), (2000, "plain"), (2000, "bad")])
def test_long_names_stay_on_the_picture(length: int, tone: str) -> None:
    long = "W" * length
    steps = tuple(Step(long, long, step.is_reached) for step in STEPS)
    image = painted(Certificate(long, long, tone, long, (long, long), steps, long, revision=long))  # type: ignore[arg-type]
    margins = [(0, 12, 66, 630), (1134, 12, 1200, 630)]
    assert [share(image, box, GROUND) for box in margins] == [1, 1]
    assert share(image, (72, 150, 1128, 230), GROUND) < 0.95, "the name is there"


def test_a_name_that_is_cut_ends_in_dots() -> None:
    """So it is not taken for a shorter one."""

    def has_ink_above_dots(name: str) -> bool:
        title = painted(replace(PLAIN, copy=name)).crop((0, 150, WIDTH, 214))
        right = max(x for x in range(WIDTH) if share(title, (x, 0, x + 1, 64), GROUND) < 1)
        return share(title, (right - 12, 0, right + 1, 52), GROUND) < 1

    assert [has_ink_above_dots("W" * letters) for letters in (20, 300)] == [True, False]


@pytest.mark.parametrize(("revision", "tail"), [("3d582670e495" + "a" * 28, "@3d582670e495"), ("v2", "@v2"), ("", "")])
def test_a_revision_stands_behind_the_name_and_behind_the_verdict(revision: str, tail: str) -> None:
    certificate = replace(PLAIN, revision=revision)
    svg = ET.fromstring(draw_badge(certificate))
    assert svg.get("aria-label") == f"Shard My Repo: me/copy{tail}, only claimed"
    assert [text.text for text in svg.iter(f"{SVG}text")][1] == f"only claimed {tail}".strip()
    assert painted(certificate).tobytes() == painted(replace(PLAIN, copy=f"me/copy{tail}")).tobytes()


def test_a_long_name_is_cut_before_its_revision() -> None:
    """So no old commit looks like main."""

    def end(revision: str) -> bytes:
        return painted(replace(PLAIN, copy="W" * 300, revision=revision)).crop((900, 150, WIDTH, 230)).tobytes()

    assert len({end("1" * 40), end("2" * 40), end("")}) == 3
    assert end("b" * 300) == end("b" * 30)


@settings(max_examples=5)
@given(st.text(max_size=120), st.sampled_from(["plain", "bad"]))
def test_any_text_can_be_painted(text: str, tone: str) -> None:
    painted(Certificate(text, text, tone, text, (text,), (Step(text, text, True),), text, text))  # type: ignore[arg-type]
