"""The house: which wing may know which, and what decides touches nothing."""

import ast
import re
from functools import cache
from graphlib import TopologicalSorter

import sharding.recipes  # noqa: F401 - every kind
from sharding.core.recipe import Recipe
from tests.conftest import ROOT

HOUSE = ROOT / "sharding"
DOWN = (
    "page, cli+desk, job, fleet, verify, report, loading+drawing, transfer, storage+planning, checkpoint, "
    "model_class, formats, recipes, core, sharding"
)
"""The wings from the top; those joined by + do not know one another, and the last is the package itself."""
APART = {
    "localhub": (),
    "demo": ("localhub",),
    "loading.probe": ("model_class.transformers_class", "core.environment", "core.allowance", "core.meter"),
}
"""Reached over HTTP, or run as a process: what each may import that is not its own."""
CHILDREN = {"loading.classic_child", "model_class.meta_model"}
"""Run as processes too."""
_PURE = "made", "option", "options", "origin", "recipe", "text", "values", "verification"
DECIDE = ("planning.", "formats.", "recipes.", *(f"core.{room}" for room in _PURE))
WORLD = {"os", "shutil", "socket", "subprocess", "time", "tempfile", "threading", "httpx", "requests"}


@cache
def modules() -> dict[str, ast.Module]:
    """Every module below `sharding`, by its name there: "core.values", "job"."""
    paths = [path for path in HOUSE.rglob("*.py") if path != HOUSE / "__init__.py"]
    names = (".".join(path.relative_to(HOUSE).with_suffix("").parts).removesuffix(".__init__") for path in paths)
    return dict(zip(names, (ast.parse(path.read_text()) for path in paths), strict=True))


@cache
def imports(module: ast.Module) -> set[str]:
    """Full names of what a module imports, anywhere in it."""
    nodes = list(ast.walk(module))
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return found | {f"{node.module}.{alias.name}" for node in froms for alias in node.names}


def ours(module: ast.Module) -> set[str]:
    """The modules of ours that it imports, as `modules` calls them; "sharding" for the package itself."""
    names = [name.removeprefix("sharding").removeprefix(".") for name in imports(module) if name.startswith("sharding")]
    known = {path.stem for path in HOUSE.iterdir()}
    return {name if name.split(".")[0] in known else "sharding" for name in names}


def calls(module: ast.Module) -> set[str]:
    """The plain names that it calls."""
    return {node.func.id for node in ast.walk(module) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}


def test_imports_point_down_and_wings_form_no_circle() -> None:
    rows = [row.split("+") for row in DOWN.split(", ")]
    below = {wing: sum(rows[number + 1 :], [wing]) for number, row in enumerate(rows) for wing in row}
    below["page"].remove("cli")
    below["cli"] += ["demo", "localhub"]  # its command hands over to them
    for name, module in modules().items():
        apart = next((place for place in APART if f"{name}.".startswith(f"{place}.")), None)
        for other in ours(module):
            if apart:
                assert other.startswith((apart, *APART[apart])), f"{name} imports {other}"
            elif name != "__main__":
                assert other.split(".")[0] in below[name.split(".")[0]], f"{name} imports {other}"
                assert not other.startswith("loading.probe"), f"{name} imports {other}"


def test_rooms_form_no_circle() -> None:
    rooms = modules()
    known = {
        name: {other for other in _rooms_of(ours(module), rooms) if other != name} for name, module in rooms.items()
    }
    TopologicalSorter(known).prepare()  # raises CycleError, which names them


def _rooms_of(imported: set[str], rooms: dict[str, ast.Module]) -> set[str]:
    """The rooms of what is imported: a room itself, or what stands in one."""
    return {name if name in rooms else name.rpartition(".")[0] for name in imported} & rooms.keys()


def test_what_runs_as_a_process_is_imported_by_nobody() -> None:
    for name, module in modules().items():
        assert not [other for other in ours(module) if other.startswith(tuple(CHILDREN))], name


def test_what_decides_touches_no_file_clock_or_network() -> None:
    for name, module in modules().items():
        if name.startswith(DECIDE):
            assert not {other.split(".")[0] for other in imports(module)} & WORLD, name
            assert not calls(module) & {"open", "print"}, name


def test_one_looks_around_the_house_at_a_glance() -> None:
    assert len([path for path in HOUSE.iterdir() if not path.name.startswith("__")]) <= 19
    for wing in HOUSE.iterdir():
        if wing.is_dir() and wing.name != "localhub":
            for folder in {room.parent for room in wing.rglob("*.py")}:
                rooms = [room for room in folder.glob("*.py") if not room.name.startswith("__")]
                assert len(rooms) <= 20, folder


def test_no_bound_is_set_twice() -> None:
    names = re.findall(r"^([A-Z_]+) = ", (ROOT / "sharding/core/limits.py").read_text(), flags=re.M)
    assert len(names) > 50 and sorted(names) == sorted(set(names))


def _texts(module: ast.Module) -> set[str]:
    """The texts in a module, without those that are documentation."""
    said = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(module) if isinstance(node, ast.Constant) and id(node) not in said)
    return {node.value for node in constants if isinstance(node.value, str)}


def _others(*places: str) -> dict[str, ast.Module]:
    """The modules outside these places, which are apart or know what others do not."""
    return {name: module for name, module in modules().items() if not f"{name}.".startswith((*places, *APART))}


def test_nobody_but_the_storage_asks_in_which_store_a_place_is() -> None:
    for name, module in _others("storage.", "core.origin").items():
        compared = [side for node in ast.walk(module) if isinstance(node, ast.Compare) for side in ast.walk(node)]
        assert not [side for side in compared if isinstance(side, ast.Attribute) and side.attr == "store"], name


def test_recipes_are_told_apart_only_where_they_are_made() -> None:
    kinds = set(Recipe.kinds)
    for name, module in _others("recipes.", "formats.", "checkpoint.").items():
        asked = [
            node for node in ast.walk(module) if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"
        ]
        assert not {n.id for call in asked for n in ast.walk(call.args[1]) if isinstance(n, ast.Name)} & kinds, name


def test_the_ending_of_weight_files_is_spelt_only_where_they_are_read_and_written() -> None:
    for name, module in _others("formats.", "checkpoint.").items():
        assert not [text for text in _texts(module) if ".safetensors" in text], name


def test_no_field_is_named_after_one_ability_outside_its_folder() -> None:
    for name, module in _others("checkpoint.", "planning.", "core.options", "page.").items():
        classes = [node for node in ast.walk(module) if isinstance(node, ast.ClassDef)]
        fields = [one.target for each in classes for one in each.body if isinstance(one, ast.AnnAssign)]
        names = [field.id for field in fields if isinstance(field, ast.Name)]
        assert not [field for field in names if re.search(r"adapter|merge|dequanti", field)], name


def test_only_the_list_of_steps_knows_the_folder_of_an_ability() -> None:
    for name, module in _others("planning.adapters.", "planning.steps").items():
        assert not [other for other in ours(module) if other.startswith("planning.adapters")], name
