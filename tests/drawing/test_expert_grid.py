"""The experts of a model as a grid: each layer a row, each expert where its tensors lie today and in the copy."""

from sharding.drawing.tensor_kinds import MOST_EXPERTS, MOST_RUNS, Run, expert_grid
from sharding.page.render import MOST_ROWS
from tests.drawing.test_model_map import checkpoint, planned


def experts(layers: int, count: int, size: int = 20) -> dict[str, int]:
    parts = {f"mlp.experts.{number}.{part}_proj": size for number in range(count) for part in ("up", "down")}
    parts |= {"mlp.gate": 1, "mlp.shared_expert.up_proj": 3}
    return {f"model.layers.{n}.{part}.weight": held for n in range(layers) for part, held in parts.items()}


def test_every_expert_stands_in_its_layer_with_its_files_and_bytes() -> None:
    source = checkpoint(experts(6, 8), files=3)
    plan, drawn = planned(source, 470)
    assert drawn.experts and drawn.experts.experts == 8
    assert [row.layer for row in drawn.experts.rows] == [f"model.layers.{n}" for n in range(6)]
    was = {tensor.name: tensor.file for tensor in source.tensors}
    files, files_today = ([column.names[0] for column in columns] for columns in (drawn.after, drawn.today))
    for row in drawn.experts.rows:
        cells = [run for run in row.runs for _ in range(run.experts)]
        assert len(cells) == 8
        for number, cell in enumerate(cells):
            parts = [f"{row.layer}.mlp.experts.{number}.{part}_proj.weight" for part in ("up", "down")]
            columns = [files.index(plan.weight_map[name]) for name in parts]
            today = [files_today.index(was[name]) for name in parts]
            assert cell.bytes == 40
            assert cell.place == (min(columns), max(columns), min(today), max(today))
    cut = [run for row in drawn.experts.rows for run in row.runs if run.place[0] != run.place[1]]
    assert cut, "an expert that lies in two files names both"
    # Neighbours that are alike are one run.
    assert sum(len(row.runs) for row in drawn.experts.rows) < 30


def test_models_without_separate_experts_have_no_grid() -> None:
    fused = {"model.layers.0.mlp.experts.gate_up_proj": 100, "model.layers.0.mlp.shared_expert.up_proj.weight": 10}
    for sizes in (fused, {"h.0.mlp.up_proj.weight": 10}, experts(3, 1)):
        assert planned(checkpoint(sizes), 1000)[1].experts is None


def test_an_expert_that_a_layer_lacks_has_no_file_there() -> None:
    names = ["h.0.experts.0.w", "h.0.experts.2.w", "h.1.experts.0.w", "h.1.experts.1.w", "h.1.experts.2.w"]
    grid = expert_grid((name, 0, -1, 5) for name in names)
    assert grid
    there, missing = Run(1, (0, 0, -1, -1), 5), Run(1, (-1, -1, -1, -1), 0)
    assert [row.runs for row in grid.rows] == [(there, missing, there), (Run(3, (0, 0, -1, -1), 5),)]


def test_a_grid_that_nobody_could_read_is_not_drawn() -> None:
    def grid(layers: int, count: int, files: int = 1) -> object:
        return expert_grid((f"h.{n}.experts.{e}.w", e % files, 0, 1) for n in range(layers) for e in range(count))

    assert grid(MOST_ROWS, 4) and not grid(MOST_ROWS + 1, 4)
    assert grid(2, MOST_RUNS // 2, files=2) and not grid(2, MOST_RUNS // 2 + 1, files=2)
    assert grid(1, MOST_EXPERTS) and not grid(1, MOST_EXPERTS + 1)
