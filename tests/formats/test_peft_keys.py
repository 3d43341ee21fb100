"""The names of the tensors in an adapter say what each is. Half of a pair and names of other tools are refused."""

import pytest

from sharding.core.errors import SourceError
from sharding.formats.peft_keys import PREFIX, Kind, Part, parts_of
from tests.promises import promise

Q = f"{PREFIX}model.layers.0.self_attn.q_proj"
EMBED = f"{PREFIX}model.embed_tokens"
PAIR = (f"{Q}.lora_A.weight", f"{Q}.lora_B.weight")
WORDS = (f"{EMBED}.lora_embedding_A", f"{EMBED}.lora_embedding_B")


@promise("docs/formats.md#which-adapters-are-refused")
@pytest.mark.parametrize(
    ("name", "kind", "of", "beside"),
    [
        (f"{Q}.lora_A.weight", "a", Q, PAIR),
        (f"{Q}.lora_B.weight", "b", Q, PAIR),
        (f"{Q}.lora_A.default.weight", "a", Q, PAIR[1:]),
        (f"{Q}.lora_B.bias", "b_bias", Q, PAIR),
        (f"{Q}.lora_magnitude_vector", "magnitude", Q, PAIR),
        (f"{Q}.lora_magnitude_vector.default.weight", "magnitude", Q, PAIR),
        (f"{EMBED}.lora_embedding_A", "embedding_a", EMBED, WORDS),
        (f"{EMBED}.lora_embedding_B.default", "embedding_b", EMBED, WORDS[:1]),
        (f"{EMBED}.token_adapter.trainable_tokens_delta", "tokens", EMBED, ()),
        (f"{EMBED}.trainable_tokens_delta", "tokens", EMBED, ()),
        (f"{EMBED}.weight", "whole", f"{EMBED}.weight", ()),
        (f"{EMBED}.base_layer.weight", "whole", f"{EMBED}.weight", WORDS),
        (f"{Q}.base_layer.bias", "whole", f"{Q}.bias", PAIR),
        (f"{EMBED}.token_adapter.base_layer.weight", "whole", f"{EMBED}.weight", ()),
        (f"{EMBED}.modules_to_save.weight", "ignored", EMBED, (f"{EMBED}.weight",)),
        (f"{EMBED}.original_module.weight", "ignored", EMBED, ()),
    ],
)
def test_a_name_says_what_a_tensor_is(name: str, kind: Kind, of: str, beside: tuple[str, ...]) -> None:
    (part,) = [part for part in parts_of(dict.fromkeys((*beside, name))) if part.name == name]
    assert part == Part(name, kind, of.removeprefix(PREFIX), ".base_layer." in name)


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        *(PAIR, PAIR[::-1], WORDS, (f"{Q}.lora_B.bias", PAIR[0]), (f"{Q}.lora_magnitude_vector", PAIR[0])),
        (f"{EMBED}.modules_to_save.weight", f"{EMBED}.weight"),
    ],
)
def test_half_of_a_pair_is_refused_and_the_other_half_named(name: str, missing: str) -> None:
    with pytest.raises(SourceError, match="Half of a pair") as refusal:
        parts_of([name])
    assert missing in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lora_unet_down_blocks_0.alpha", "kohya"),
        ("q_proj.lora_down.weight", "kohya"),
        ("unet.down_blocks.0.attn1.to_q.lora.up.weight", "diffusers"),
        ("model.layers.0.self_attn.q_proj.lora_A.weight", "another tool"),
    ],
)
def test_names_of_other_tools_are_refused(name: str, words: str) -> None:
    with pytest.raises(SourceError, match=words) as refusal:
        parts_of([*PAIR, name])
    assert name in str(refusal.value) and "1 tensor of the adapter has a name" in str(refusal.value)


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        *(
            ([*PAIR, f"{Q}.{part}"], "does not know")
            for part in ("lora_C.weight", "lora_A.other.weight", "lora_B.weight.x")
        ),
        ([], "no tensors"),
        ([*PAIR, f"{Q}.lora_A.default.weight"], "for the same tensor"),
    ],
)
def test_unknown_parts_no_names_and_two_for_the_same_tensor_are_refused(names: list[str], problem: str) -> None:
    with pytest.raises(SourceError, match=problem):
        parts_of(names)
