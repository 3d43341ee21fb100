"""Say how transformers 5.23 holds experts in memory, and how repos store them. Pure."""

FUSED = (
    "mixtral", "minimax", "minimax_m2", "phimoe", "qwen2_moe", "afmoe", "deepseek_v2", "deepseek_v3", "deepseek_v32",
    "dots1", "ernie4_5_moe", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "glm4v_moe", "longcat_flash", "solar_open",
    "mellum", "qwen3_moe", "qwen3_omni_moe", "qwen3_omni_moe_thinker", "qwen3_omni_moe_text", "qwen3_next",
    "hunyuan_v1_moe", "flex_olmo", "olmoe", "exaone_moe", "cohere2_moe",
)  # fmt: skip
"""Types that transformers 5.23 stores one by one and holds in one tensor (`conversion_mapping`)."""

TRANSPOSED = ("gpt_oss", "aria", "aria_text", "openai_privacy_filter")
"""Types whose experts have inputs before outputs (transformers 5.23, `is_transposed`)."""

_APART = (*FUSED, "qwen3_5_moe", "lfm2_moe", "nemotron_h", "jamba", "mimo_v2_flash", "hy_v3", "laguna", "kolibri1")
"""Types whose experts libraries load one by one."""

OLD_BLOCKS = ("mixtral", "minimax", "minimax_m2", "phimoe")
"""Types whose blocks of experts are `block_sparse_moe` in files, and `mlp` in memory."""

SHORT_NAMES = (*OLD_BLOCKS, "lfm2_moe")
"""Types whose experts have the matrices w1, w2 and w3 in files."""


def is_stored_apart(model_type: str) -> bool:
    """Return whether libraries load the experts of this type one by one."""
    return model_type in _APART or model_type.removesuffix("_text") in _APART
