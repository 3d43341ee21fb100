"""What a quantized checkpoint becomes: which tensors, which configuration; and which are refused, by what name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from sharding import job
from sharding.core.errors import SourceError, UsageError
from sharding.core.options import Options
from sharding.core.values import Content
from sharding.planning.dequantize import dequantized, offer
from sharding.planning.draft import Draft, draft_of
from sharding.planning.plan import identify_plan, planned
from sharding.planning.steps import NO_CLASS
from sharding.recipes.quantized import Scaled
from tests.promises import promise
from tests.quantized import compressed, integers, write

ASKED = Options(dequantize=True)
FP8, MXFP4 = {"quant_method": "fp8", "weight_block_size": [128, 128]}, {"quant_method": "mxfp4"}


def number(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.uint8).view(torch.float8_e4m3fn)


ONE = {"a.weight": number(3, 2), "a.weight_scale_inv": torch.ones(1)}
"""A weight with its scale."""


def checkpoint(folder: Path, tensors: dict[str, torch.Tensor], said: dict[str, Any] | None) -> Content:
    return job.inspect(str(write(folder, tensors, said)))


def ordinary(before: Content, dtype: Any = "fp32") -> Draft:
    return dequantized(draft_of(before, Options(dtype=dtype, dequantize=True)))


def shapes(found: Draft) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {tensor.name: (tensor.dtype, tensor.shape) for tensor in found.tensors}


@promise("docs/formats.md#quantized-weights")
def test_weights_are_computed_scales_are_gone_and_the_rest_stays_where_it_is(tmp_path: Path) -> None:
    before = checkpoint(
        tmp_path,
        {
            "a.weight": number(300, 200),
            "a.weight_scale_inv": torch.ones(3, 2),
            "a.activation_scale": torch.ones(1),
            "b.norm": torch.ones(4, dtype=torch.bfloat16),
            "e.gate_up_proj": number(2, 128, 100),
            "e.gate_up_proj_scale_inv": torch.ones(2, 1, 1),
            "e.gate_up_proj_activation_scale": torch.ones(2),
            "one.weight": number(3, 5),
            "one.weight_scale_inv": torch.tensor(2.0, dtype=torch.bfloat16),
        },
        FP8,
    )
    after = ordinary(before)
    assert shapes(after) == {
        "a.weight": ("F32", (300, 200)),
        "b.norm": ("BF16", (4,)),
        "e.gate_up_proj": ("F32", (2, 128, 100)),
        "one.weight": ("F32", (3, 5)),
    }
    recipes = {tensor.name: tensor.recipe for tensor in before.tensors}
    products = {tensor.name: tensor.recipe for tensor in after.tensors if isinstance(tensor.recipe, Scaled)}
    assert {name: product.scales.block for name, product in products.items()} == {
        **dict.fromkeys(["a.weight", "e.gate_up_proj"], (128, 128)), "one.weight": (3, 5),
    }  # fmt: skip
    for name, product in products.items():
        assert (product.of, product.scales.of) == (recipes[name], recipes[f"{name}_scale_inv"])
    assert [tensor for tensor in after.tensors if tensor.name == "b.norm"][0] in before.tensors
    assert planned(before, ASKED).total_parameters == 300 * 200 + 4 + 2 * 128 * 100 + 15
    assert "quantization" not in after.configs[""]


@pytest.mark.parametrize(
    ("dtype", "to", "changed"), [("keep", " to bf16", [1]), ("fp32", "", [1]), ("fp16", "", [1, 2])]
)
def test_what_is_said_to_be_done_is_what_was_asked_and_no_number_of_another_tensor_changes(
    dtype: Any, to: str, changed: list[int], tmp_path: Path
) -> None:
    before = checkpoint(tmp_path, {**ONE, "b": torch.ones(4), "c": torch.ones(1).int()}, FP8)
    made = planned(before, Options(dequantize=True, dtype=dtype), NO_CLASS).made
    done = [f"dequantized{to} (fp8, one scale for each 128 x 128)", "cast to fp16"][: len(changed)]
    assert ([one.done for one in made], [one.changed for one in made]) == (done, changed)
    assert all(one.of == 3 and one.is_exact and not one.keeps_size for one in made)


def test_without_the_option_a_checkpoint_is_what_it_was_and_with_it_the_plan_is_another(tmp_path: Path) -> None:
    before = checkpoint(tmp_path, ONE, FP8)
    kept, asked = planned(before, Options()), planned(before, ASKED)
    assert {*kept.shards[0].tensors} == {*before.tensors} and not kept.made
    assert [one.evidence for one in asked.made] == ["fp8, one scale for each 128 x 128"]
    assert identify_plan(asked) != identify_plan(kept)


def test_what_the_index_says_of_parameters_no_longer_holds(tmp_path: Path) -> None:
    name = "model-00001-of-00001.safetensors"
    (write(tmp_path, ONE, FP8) / "model.safetensors").rename(tmp_path / name)
    index = {"metadata": {"total_parameters": 7}, "weight_map": dict.fromkeys(ONE, name)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    before = job.inspect(str(tmp_path))
    assert (before.total_parameters, planned(before, ASKED).total_parameters) == (7, 6)


def test_a_part_of_a_model_may_be_what_is_quantized(tmp_path: Path) -> None:
    write(tmp_path, ONE, None)
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"quantization_config": FP8, "hidden_size": 2}}))
    after = ordinary(job.inspect(str(tmp_path)))
    assert json.loads(after.configs[""]) == {"text_config": {"hidden_size": 2}}


def test_a_component_of_a_pipeline_is_dequantized_in_its_folder(tmp_path: Path) -> None:
    parts = {"_class_name": "P", "text": ["transformers", "T"], "unet": ["diffusers", "U"]}
    (tmp_path / "model_index.json").write_text(json.dumps(parts))
    write(tmp_path / "text", ONE, FP8)
    (tmp_path / "unet").mkdir()
    save_file({"c": torch.ones(2)}, tmp_path / "unet/diffusion_pytorch_model.safetensors", {"format": "pt"})
    after = ordinary(job.inspect(str(tmp_path)))
    assert shapes(after) == {"text/a.weight": ("F32", (3, 2)), "unet/c": ("F32", (2,))}
    (product,) = [tensor for tensor in after.tensors if isinstance(tensor.recipe, Scaled)]
    assert (product.file, product.folder) == ("text/model.safetensors", "text/")


@pytest.mark.parametrize("said", [compressed("channel"), FP8], ids=["compressed-tensors", "fp8"])
def test_what_only_kernels_read_is_gone(said: dict[str, Any], tmp_path: Path) -> None:
    tensors = {
        "a.weight": number(3, 2),
        "a.weight_scale": torch.ones(3, 1),
        "a.input_scale": torch.ones(1),
        "a.k_scale": torch.ones(1),
        "attn.k_scale": torch.ones(1),
        "attn.kv_scale": torch.ones(1),
        "logit_scale": torch.ones(1),
    }
    assert shapes(ordinary(checkpoint(tmp_path, tensors, said))).keys() == {"a.weight", "logit_scale"}


@promise("docs/formats.md#what-cannot-be-dequantized")
@pytest.mark.parametrize(
    ("said", "names", "name"),
    [
        ({"quant_method": "gptq", "bits": 3}, "w.qweight", "gptq with 3 bits"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "w.qweight", "format marlin"),
        ({"quant_method": "gptq", "bits": 4, "format": "gptq_p"}, "w.qweight", "format gptq_p"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "w.qweight", "version gemv"),
        ({"quant_method": "awq", "bits": 4, "format": "gemv_fast"}, "w.qweight", "version gemv_fast"),
        ({"quant_method": "torchao"}, "w:qdata", "torchao"),
        ({"quant_method": "fbgemm_fp8"}, "w", "fbgemm_fp8"),
        ({"quant_method": "quanto"}, "w", "quanto"),
        ({"quant_method": "hqq"}, "w", "hqq"),
        ({"quant_method": "exl2"}, "w", "exl2"),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}, "w", "modelopt W4A16_AWQ"),
        ({"bits": 4}, "w", "an unnamed method"),
        ({**FP8, "expert_dtype": "int4"}, "w", "fp8 with experts in int4"),
        ({**FP8, "weight_block_size": [128, -1]}, "w", "fp8 in blocks of"),
        (compressed("group"), "w", "a scale for each group"),
        (compressed("channel", format="pack-quantized"), "w", "compressed-tensors pack-quantized .float8"),
        (compressed("channel", format="mxfp6-quantized"), "w", "compressed-tensors mxfp6-quantized"),
        (integers(5, 32), "w", "pack-quantized .int5"),
        (integers(4, 32, strategy="token"), "w", "a scale for each token"),
        (compressed("channel", sparsity_config={"format": "sparse-24-bitmask"}), "w", "sparsity_config"),
        (compressed("channel", transform_config={"config_groups": {"u": {}}}), "w", "transform_config"),
        (compressed("channel", transform_config=["dense"]), "w", "transform_config"),
        (compressed("channel", config_groups={}), "w", "does not say how"),
    ],
    ids=str,
)
def test_other_methods_are_refused_by_name_with_what_helps(
    said: dict[str, Any], names: str, name: str, tmp_path: Path
) -> None:
    write(tmp_path, {names: torch.ones(4)}, said)
    with pytest.raises(SourceError, match=name) as caught:
        job.plan(str(tmp_path), ASKED)
    assert "quantized from" in caught.value.hint
    assert not [finding for finding in job.inspect(str(tmp_path)).findings if finding.code == "quantized"]


NO_BLOCKS, OF_TENSOR = {"weight_block_size": None}, {"a.weight": number(3, 2), "a.weight_scale": torch.ones(1)}
EXPERTS = {"e_blocks": torch.ones(2, 3, 4, 16).byte(), "e_scales": torch.ones(2, 3, 4).byte()}


@pytest.mark.parametrize(
    ("tensors", "said", "wrong"),
    [
        ({"a.weight": number(300, 200)}, FP8, "no weight here is"),
        ({**ONE, "b.weight": number(3, 2)}, FP8, "b.weight is"),
        ({"a.weight": number(300, 200), "a.weight_scale_inv": torch.ones(2, 2)}, FP8, "scales F32"),
        ({"a.weight": number(30, 20), "a.weight_scale_inv": torch.ones(30, 20)}, {**FP8, **NO_BLOCKS}, "F32"),
        ({"a.weight": number(3, 64), "a.weight_scale_inv": torch.ones(3, 3).byte()}, FP8, "scales U8"),
        ({"a.weight": number(3, 2), "a.weight_scale_inv": torch.ones(1, dtype=torch.int64)}, FP8, "no weight here is"),
        ({**OF_TENSOR, "a.weight_zero_point": torch.ones(1)}, compressed("tensor"), "zero_point is not"),
        ({**EXPERTS, "e_blocks": torch.ones(2, 3, 4, 8).byte()}, MXFP4, "e_blocks is U8"),
        ({**EXPERTS, "f_blocks": torch.ones(2, 3, 4, 16).byte()}, MXFP4, "f_blocks is not"),
    ],
    ids=["no scales", "one without", "another grid", "too many", "bytes", "integers", "zero point", "short", "half"],
)
def test_weights_that_are_not_as_their_configuration_says_are_refused(
    tensors: dict[str, torch.Tensor], said: dict[str, Any], wrong: str, tmp_path: Path
) -> None:
    write(tmp_path, tensors, said)
    with pytest.raises(SourceError, match=wrong):
        job.plan(str(tmp_path), ASKED)


def test_what_is_not_quantized_is_wrong_usage_and_what_no_configuration_explains_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"a.weight": torch.ones(3, 2)}, None)
    with pytest.raises(UsageError, match="not quantized"):
        job.plan(str(tmp_path), ASKED)
    words = {"b.qweight": torch.ones(3, 2).int(), "b.scales": torch.ones(3)}
    for tensors in (words, ONE | words, ONE | {"a.pre_quant_scale": torch.ones(2)}):
        write(tmp_path, tensors, None)
        with pytest.raises(SourceError, match=r"as .+ shows, but no config.json says how"):
            job.plan(str(tmp_path), ASKED)


def test_names_and_dtypes_alone_explain_fp8(tmp_path: Path) -> None:
    for name in ("weight_scale_inv", "weight_scale", "scale", "scale_weight", "qscale_weight"):
        for scale in (torch.ones(1), torch.tensor(2.0), torch.ones(3, 1), torch.ones(3)):
            after = ordinary(checkpoint(tmp_path, {"a.weight": number(3, 2), f"a.{name}": scale}, None))
            assert shapes(after) == {"a.weight": ("F32", (3, 2))}
            assert [one.evidence for one in after.made] == ["fp8"]


def test_inspect_says_what_dequantizing_would_make_of_it_and_a_cast_points_to_it(tmp_path: Path) -> None:
    tensors = {"a.weight": number(1000, 1000), "a.weight_scale_inv": torch.ones(8, 8)}
    before = checkpoint(tmp_path, tensors, FP8)
    (finding,) = [finding for finding in before.findings if finding.code == "quantized"]
    assert finding.level == "info" and "--dequantize" in finding.hint
    assert "fp8, one scale for each 128 x 128. They take 1.0 MB now, and 2.0 MB" in finding.message
    assert offer(before) == ("fp8, one scale for each 128 x 128", "1.0 MB", "2.0 MB")
    with pytest.raises(SourceError, match="quantized with fp8") as caught:
        job.plan(str(tmp_path), Options(dtype="bf16"))
    assert "--dequantize" in caught.value.hint


def test_an_expert_in_mxfp4_has_so_many_scales_at_most_as_it_is_transposed_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {"e.up_blocks": torch.zeros(4, 3, 2, 16).byte(), "e.up_scales": torch.zeros(4, 3, 2).byte()}
    before = checkpoint(tmp_path, tensors, MXFP4)
    monkeypatch.setattr("sharding.planning.quantizers.floats.MAX_EXPERT_BYTES", 6)
    assert shapes(ordinary(before)) == {"e.up": ("F32", (4, 64, 3))}
    monkeypatch.setattr("sharding.planning.quantizers.floats.MAX_EXPERT_BYTES", 5)
    with pytest.raises(SourceError, match="config.json says something else: mxfp4"):
        ordinary(before)


# --- Several formats in one model, and formats without a configuration -----------------------------------------


def groups(*said: dict[str, Any]) -> dict[str, Any]:
    """One configuration of compressed-tensors with the groups of several."""
    several = {f"group_{n}": one["config_groups"]["group_0"] | {"format": one["format"]} for n, one in enumerate(said)}
    return said[0] | {"format": "mixed-precision", "config_groups": several}


NVFP4 = compressed("tensor_group", format="nvfp4-pack-quantized")
NVFP4["config_groups"]["group_0"]["weights"] |= {"num_bits": 4, "group_size": 16}
OF_NVFP4 = {
    "n.weight_packed": torch.ones(4, 16).byte(),
    "n.weight_scale": number(4, 2),
    "n.weight_global_scale": torch.ones(1),
    "n.input_global_scale": torch.ones(1),
}
OF_INT4 = {"i.weight_packed": torch.ones(4, 4).int(), "i.weight_scale": torch.ones(4, 1)}
OF_FP8 = {"a.weight": number(3, 2), "a.weight_scale": torch.ones(3, 1)}


def test_one_model_may_have_all_formats_that_its_configuration_names_and_no_other(tmp_path: Path) -> None:
    said = groups(NVFP4, compressed("channel"), integers(4, 32))
    found = {**OF_NVFP4, **OF_FP8, **OF_INT4, "i.weight_shape": torch.tensor([4, 32]), "b.bias": torch.ones(2)}
    after = ordinary(checkpoint(tmp_path, found, said))
    assert {name: shape for name, (_, shape) in shapes(after).items()} == {
        "n.weight": (4, 32), "a.weight": (3, 2), "i.weight": (4, 32), "b.bias": (2,),
    }  # fmt: skip
    assert [one.evidence for one in after.made] == [
        "compressed-tensors nvfp4-pack-quantized (fp4), one scale for each 16 and float-quantized (fp8), one scale a "
        "channel and pack-quantized (int4), one scale for each 32"
    ]
    others = {
        "blocks of INT8": {"o.weight": torch.ones(4, 4).char(), "o.weight_scale_inv": torch.ones(1, 1)},
        "GPTQ": {"o.qweight": torch.ones(4, 4).int(), "o.qzeros": torch.ones(4, 4).int(), "o.scales": torch.ones(4)},
        "scales alone": {"o.weight_scale": torch.ones(4)},
        "codes alone": {"o.weight": number(4, 4)},
    }
    for name, other in others.items():
        with pytest.raises(SourceError, match=r"o\.\w+ is not quantized as config.json says"):
            ordinary(checkpoint(tmp_path, found | other, said))
        assert offer(job.inspect(str(tmp_path))) is None, name


def test_groups_that_a_weight_could_both_be_of_are_refused(tmp_path: Path) -> None:
    assert ordinary(checkpoint(tmp_path, OF_INT4, groups(integers(4, 32), integers(8, 32))))
    with pytest.raises(SourceError, match=r"several groups that i.weight_packed may be of: .*int4.* and .*int8"):
        ordinary(checkpoint(tmp_path, OF_INT4, groups(integers(4, 32), integers(8, 16))))
    with pytest.raises(SourceError, match="i.weight_packed is I32"):
        ordinary(checkpoint(tmp_path, OF_INT4, integers(4, 64)))


@pytest.mark.parametrize("marker", ["scaled_fp8", "a.comfy_quant", "_quantization_metadata"])
def test_scaled_fp8_of_comfyui_needs_no_configuration_and_its_other_formats_are_refused(
    marker: str, tmp_path: Path
) -> None:
    tensors = {"a.weight": number(3, 2), "a.scale_weight": torch.ones(()), "a.scale_input": torch.ones(())}
    tensors |= {} if marker[0] == "_" else {marker: torch.zeros(2).byte() if "." in marker else number(2)}
    notes = {"format": "pt", "other": "stays"} | ({marker: "{}"} if marker[0] == "_" else {})

    def written(more: dict[str, torch.Tensor]) -> Content:
        save_file(tensors | more, tmp_path / "model.safetensors", notes)
        return job.inspect(str(tmp_path))

    after = ordinary(written({"b": torch.ones(2)}))
    assert shapes(after) == {"a.weight": ("F32", (3, 2)), "b": ("F32", (2,))}
    assert after.components[0].metadata == {"format": "pt", "other": "stays"}
    assert [one.evidence for one in after.made] == ["the scaled fp8 of ComfyUI"]
    nvfp4 = {"n.weight": torch.ones(4, 16).byte(), "n.weight_scale": number(4, 2), "n.weight_scale_2": torch.ones(())}
    mxfp8 = {"n.weight": number(4, 32), "n.weight_scale": torch.ones(4, 1).byte()}
    for other in (nvfp4, mxfp8):
        with pytest.raises(SourceError, match=r"n\.\w+ is not quantized as .* ComfyUI"):
            ordinary(written(other))


def test_what_modelopt_says_in_a_file_of_its_own_needs_no_configuration(tmp_path: Path) -> None:
    tensors = {
        "n.weight": torch.ones(4, 16).byte(),
        "n.weight_scale": number(4, 2),
        "n.weight_scale_2": torch.ones(()),
        "n.input_scale": torch.ones(()),
        "n.k_proj.k_scale": torch.ones(1),
        **OF_FP8,
    }
    write(tmp_path, tensors, None)
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    assert shapes(ordinary(job.inspect(str(tmp_path)))).keys() == {"n.weight", "a.weight"}
    plan = planned(job.inspect(str(tmp_path)), ASKED)
    assert plan.unfit == {"hf_quant_config.json"} and [one.evidence for one in plan.made] == ["fp8; nvfp4"]
