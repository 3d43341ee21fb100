"""What stands above and below the strips: components of a pipeline, and the numbers of files."""

from sharding.drawing.map_svg import components, file_numbers
from sharding.drawing.model_map import WIDTH, Column


def columns(*names: list[str]) -> list[Column]:
    wide = WIDTH / len(names)
    return [Column(held, 1, 100, number * wide, wide - 10) for number, held in enumerate(names)]


def test_components_are_named_after_their_folders_and_span_their_files() -> None:
    placed = components(columns(["text_encoder/a"], ["unet/a"], ["unet/b", "unet/c"], ["z"]))
    assert [(bracket.name, bracket.x, bracket.width) for bracket in placed] == [
        ("text_encoder", 0, 240),
        ("unet", 250, 490),
        ("top folder", 750, 240),
    ]
    assert components(columns(["a"], ["b"])) == components(columns(["unet/a"])) == ()


def test_files_are_numbered_in_their_own_folder() -> None:
    assert file_numbers(columns(["unet/a", "unet/b"], ["unet/c"], ["vae/d"], ["e"], ["f"])) == [1, 3, 0, 1, 2]
    assert file_numbers(columns(["a"])) == [0]
