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
from sharding.core.values import Checkpoint
from sharding.planning.dequantize import dequantized, offer
from sharding.planning.plan import identify_plan, planned
from sharding.recipes.quantized import Fp8
from tests.promises import promise
from tests.quantized import compressed, write

ASKED = Options(dequantize=True)
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def number(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.uint8).view(torch.float8_e4m3fn)


def checkpoint(folder: Path, tensors: dict[str, torch.Tensor], said: dict[str, Any] | None) -> Checkpoint:
    return job.inspect(str(write(folder, tensors, said)))


def shapes(found: Checkpoint) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {tensor.name: (tensor.dtype, tensor.shape) for tensor in found.tensors}


def test_keep_means_bf16_where_weights_are_dequantized() -> None:
    assert Options(dequantize=True).dtype_made == "bf16"
    assert Options(dtype="fp32", dequantize=True).dtype_made == "fp32"
    assert Options().dtype_made == "keep"


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
    after = dequantized(before)
    assert shapes(after) == {
        "a.weight": ("F32", (300, 200)),
        "b.norm": ("BF16", (4,)),
        "e.gate_up_proj": ("F32", (2, 128, 100)),
        "one.weight": ("F32", (3, 5)),
    }
    recipes = {tensor.name: tensor.recipe for tensor in before.tensors}
    products = {tensor.name: tensor.recipe for tensor in after.tensors if isinstance(tensor.recipe, Fp8)}
    for name, block in (("a.weight", (128, 128)), ("e.gate_up_proj", (128, 128)), ("one.weight", (3, 5))):
        product = products.pop(name)
        assert (product.of, product.scales) == (recipes[name], recipes[f"{name}_scale_inv"])
        assert product.block == block
    assert not products
    (norm,) = [tensor for tensor in after.tensors if tensor.name == "b.norm"]
    assert norm in before.tensors
    assert after.total_parameters == 300 * 200 + 4 + 2 * 128 * 100 + 15
    assert after.dequantized == "fp8, one scale for each 128 x 128"
    assert "quantization" not in after.configs[""]


def test_without_the_option_a_checkpoint_is_what_it_was(tmp_path: Path) -> None:
    before = checkpoint(tmp_path, {"a.weight": number(3, 2), "a.weight_scale_inv": torch.ones(1)}, FP8)
    (shard,) = planned(before, Options()).shards
    assert {*shard.tensors} == {*before.tensors}


def test_what_the_index_says_of_parameters_no_longer_holds(tmp_path: Path) -> None:
    tensors = {"a.weight": number(3, 2), "a.weight_scale_inv": torch.ones(1)}
    write(tmp_path, {}, FP8)
    (tmp_path / "model.safetensors").unlink()
    save_file(tensors, tmp_path / "model-00001-of-00001.safetensors", {"format": "pt"})
    index = {
        "metadata": {"total_parameters": 7},
        "weight_map": dict.fromkeys(tensors, "model-00001-of-00001.safetensors"),
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    before = job.inspect(str(tmp_path))
    assert (before.total_parameters, dequantized(before).total_parameters) == (7, 6)


def test_a_part_of_a_model_may_be_what_is_quantized(tmp_path: Path) -> None:
    write(tmp_path, {"a.weight": number(3, 2), "a.weight_scale_inv": torch.ones(1)}, None)
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"quantization_config": FP8, "hidden_size": 2}}))
    after = dequantized(job.inspect(str(tmp_path)))
    assert json.loads(after.configs[""]) == {"text_config": {"hidden_size": 2}}


def test_a_component_of_a_pipeline_is_dequantized_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text(
        json.dumps({"_class_name": "P", "text": ["transformers", "T"], "unet": ["diffusers", "U"]})
    )
    write(tmp_path / "text", {"a.weight": number(3, 2), "a.weight_scale_inv": torch.ones(1)}, FP8)
    (tmp_path / "unet").mkdir()
    save_file({"c": torch.ones(2)}, tmp_path / "unet/diffusion_pytorch_model.safetensors", {"format": "pt"})
    after = dequantized(job.inspect(str(tmp_path)))
    assert shapes(after) == {"text/a.weight": ("F32", (3, 2)), "unet/c": ("F32", (2,))}
    (product,) = [tensor for tensor in after.tensors if isinstance(tensor.recipe, Fp8)]
    assert (product.file, product.folder) == ("text/model.safetensors", "text/")


def test_scales_of_the_cache_of_keys_and_values_are_gone_where_the_configuration_says_there_are_some(
    tmp_path: Path,
) -> None:
    tensors = {
        "a.weight": number(3, 2),
        "a.weight_scale": torch.ones(3, 1),
        "a.input_scale": torch.ones(1),
        "attn.k_scale": torch.ones(1),
        "logit_scale": torch.ones(1),
    }
    kept = dequantized(checkpoint(tmp_path, tensors, compressed("channel")))
    assert shapes(kept).keys() == {"a.weight", "attn.k_scale", "logit_scale"}
    gone = dequantized(checkpoint(tmp_path, tensors, compressed("channel", kv_cache_scheme={"num_bits": 8})))
    assert shapes(gone).keys() == {"a.weight", "logit_scale"}


@promise("docs/formats.md#what-cannot-be-dequantized")
@pytest.mark.parametrize(
    ("said", "names", "name"),
    [
        ({"quant_method": "gptq", "bits": 4}, "w.qweight", "gptq"),
        ({"quant_method": "awq"}, "w.qweight", "awq"),
        ({"quant_method": "bitsandbytes"}, "w.absmax", "bitsandbytes"),
        ({"load_in_4bit": True, "load_in_8bit": False}, "w.absmax", "bitsandbytes"),
        ({"quant_method": "torchao"}, "w:qdata", "torchao"),
        ({"quant_method": "nvfp4"}, "w", "nvfp4"),
        ({"quant_method": "mxfp8"}, "w", "mxfp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "w", "modelopt"),
        ({"bits": 4}, "w", "an unnamed method"),
        ({**FP8, "expert_dtype": "fp4"}, "w", "fp8 with experts in fp4"),
        ({**FP8, "weight_block_size": [1, 32]}, "w", "mxfp8"),
        ({**FP8, "weight_block_size": [128, -1]}, "w", "fp8 in blocks of"),
        (compressed("group"), "w", "compressed-tensors other than fp8"),
        (compressed("channel", format="pack-quantized"), "w", "compressed-tensors pack-quantized"),
        (compressed("channel", format="int-quantized"), "w", "compressed-tensors int-quantized"),
        (compressed("channel", format="naive-quantized"), "w", "compressed-tensors naive-quantized"),
        (compressed("channel", format="nvfp4-pack-quantized"), "w", "compressed-tensors nvfp4-pack-quantized"),
        (compressed("channel", format="mixed-precision"), "w", "compressed-tensors mixed-precision"),
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


@pytest.mark.parametrize(
    ("tensors", "said", "wrong"),
    [
        ({"a.weight": number(300, 200)}, FP8, "no weight here is"),
        ({"a.weight": number(3, 2), "a.weight_scale_inv": torch.ones(1), "b.weight": number(3, 2)}, FP8, "b.weight is"),
        ({"a.weight": number(300, 200), "a.weight_scale_inv": torch.ones(2, 2)}, FP8, "scales F32"),
        (
            {"a.weight": number(30, 20), "a.weight_scale_inv": torch.ones(30, 20)},
            {**FP8, "weight_block_size": None},
            "F32",
        ),
        ({"a.weight": number(3, 64), "a.weight_scale_inv": torch.ones(3, 2).byte()}, FP8, "mxfp8"),
        ({"a.weight": number(3, 2), "a.weight_scale_inv": torch.ones(1, dtype=torch.int64)}, FP8, "scales I64"),
        (
            {"a.weight": number(3, 2), "a.weight_scale": torch.ones(1), "a.weight_zero_point": torch.ones(1)},
            compressed("tensor"),
            "zero_point is not",
        ),
        (
            {"e_blocks": torch.ones(2, 3, 4, 8).byte(), "e_scales": torch.ones(2, 3, 4).byte()},
            {"quant_method": "mxfp4"},
            "e_blocks is U8",
        ),
        (
            {
                "e_blocks": torch.ones(2, 3, 4, 16).byte(),
                "e_scales": torch.ones(2, 3, 4).byte(),
                "f_blocks": torch.ones(2, 3, 4, 16).byte(),
            },
            {"quant_method": "mxfp4"},
            "f_blocks is not",
        ),
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
    write(tmp_path, {"a.weight": number(3, 2), "a.weight_scale_inv": torch.ones(1)}, None)
    with pytest.raises(SourceError, match=r"a.weight.* but no config.json says how"):
        job.plan(str(tmp_path), ASKED)


def test_inspect_says_what_dequantizing_would_make_of_it_and_a_cast_points_to_it(tmp_path: Path) -> None:
    tensors = {"a.weight": number(1000, 1000), "a.weight_scale_inv": torch.ones(8, 8)}
    before = checkpoint(tmp_path, tensors, FP8)
    (finding,) = [finding for finding in before.findings if finding.code == "quantized"]
    assert finding.level == "info" and "--dequantize" in finding.hint
    assert "fp8, one scale for each 128 x 128. They take 1.0 MB now, and 2.0 MB" in finding.message
    found = offer(before)
    assert found is not None and (found.bytes_before, found.bytes_after) == (1_000_256, 2_000_000)
    with pytest.raises(SourceError, match="quantized with fp8") as caught:
        job.plan(str(tmp_path), Options(dtype="bf16"))
    assert "--dequantize" in caught.value.hint


def test_a_plan_of_computed_weights_is_another_job(tmp_path: Path) -> None:
    checkpoint(tmp_path, {"a.weight": number(3, 2), "a.weight_scale_inv": torch.ones(1)}, FP8)
    planned = job.plan(str(tmp_path), ASKED)[1]
    assert planned.dequantized == "fp8, one scale for each 128 x 128"
    assert identify_plan(planned) != identify_plan(job.plan(str(tmp_path), Options())[1])


@pytest.mark.parametrize(("most", "is_taken"), [(6, True), (5, False)])
def test_an_expert_in_mxfp4_has_so_many_scales_at_most_as_it_is_transposed_as_a_whole(
    most: int, is_taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.planning.dequantize.MAX_EXPERT_BYTES", most)
    tensors = {"e.up_blocks": torch.zeros(4, 3, 2, 16), "e.up_scales": torch.zeros(4, 3, 2)}
    before = checkpoint(
        tmp_path, {name: tensor.to(torch.uint8) for name, tensor in tensors.items()}, {"quant_method": "mxfp4"}
    )
    if is_taken:
        assert shapes(dequantized(before)) == {"e.up": ("F32", (4, 64, 3))}
        return
    with pytest.raises(SourceError, match="config.json says something else: mxfp4"):
        dequantized(before)
