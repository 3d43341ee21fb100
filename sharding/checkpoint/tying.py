"""Tell from a config.json whether transformers makes one tensor of embeddings and output head after loading. Pure."""

from typing import Any

_TIED_WHATEVER_IT_SAYS = frozenset({"longt5", "mt5", "t5", "udop", "umt5"})
"""Model types whose configuration class (transformers 5.23) ties, and passes over a `false` in the file."""

_TYPES_WITH_TIES = """
    afmoe albert apertus arcee aria aria_text axk1 axk2 aya_vision bamba bart beam bert bert-generation big_bird
    bigbird_pegasus biogpt bitnet blenderbot blenderbot-small bloom camembert canary chameleon codegen
    cohere cohere2 cohere2_moe cohere2_vision cohere_asr cohere_compass cohere_compass_text convbert cosmos3_omni
    ctrl cwm data2vec-text dbrx deberta deberta-v2 deepseek_ocr2 deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4
    deepseek_vl deepseek_vl_hybrid diffllama diffusion_gemma distilbert doge dots1 dots3_note dots3_note_text
    electra emu3 ernie ernie4_5 ernie4_5_moe ernie4_5_vl_moe esm eurobert exaone4 exaone4_5 exaone_moe falcon
    falcon_h1 falcon_mamba fast_vlm flaubert flex_olmo flint florence2 fnet fun_asr_nano funnel fuyu gemma
    gemma2 gemma3 gemma3_text gemma3n gemma3n_text gemma4 gemma4_assistant gemma4_text gemma4_unified
    gemma4_unified_assistant gemma4_unified_text git glm glm4 glm46v glm4_moe glm4_moe_lite glm4v glm4v_moe
    glm5_next glm_moe_dsa glm_ocr glmasr glmga got_ocr2 gpt-sw3 gpt2 gpt_bigcode gpt_neo gpt_neox gpt_neox_japanese
    gpt_oss gptj granite granite4_vision granite_docling granite_speech granite_speech_plus granite_swa granitemoe
    granitemoe_swa granitemoehybrid granitemoeshared gte helium hrm_text hunyuan_v1_dense hunyuan_v1_moe hunyuan_vl
    hy_v3 hy_v4 hyperclovax hyperclovax_vision_v2 ibert idefics idefics2 idefics3 internlm3 internvl iquestcoder
    jais2 jamba janus jetmoe jina_embeddings_v3 kimi_k25 kolibri1 kosmos-2 kyutai_speech_to_text laguna layoutlm led
    lfm2 lfm2_moe lfm2_vl lfm3 lfm3_vl lighton_ocr llama llama4 llama4_text llava llava_next llava_next_video
    llava_onevision longcat_flash longformer longt5 lxmert m2m_100 mamba mamba2 marian mbart megatron-bert mellum
    mimo_v2_flash minicpm3 minicpm_ocr minicpmv4_6 minicpmv4_7 minimax minimax_m2 minimax_m3_vl minimax_m3_vl_text
    ministral ministral3 mistral mistral3 mistral4 mistral_large4 mixtral mobilebert modernbert modernbert-decoder
    modernvbert moonshine moonshine_streaming moss_transcribe_diarize mpnet mpt mra mt5 muse_glimmer mvp nanochat
    nemotron neomme nllb-moe nomic_bert nystromformer olmo olmo2 olmo3 olmo_hybrid olmoe openai-gpt opt ovis2
    paddleocr_vl paligemma pegasus pegasus_x perception_lm persimmon phi phi3 phi4_multimodal phimoe plbart
    pp_chart2table prophetnet qianfan_ocr qwen2 qwen2_5_omni_thinker qwen2_5_vl qwen2_moe qwen2_vl qwen3
    qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_asr qwen3_moe qwen3_next qwen3_omni_moe_thinker qwen3_vl
    qwen3_vl_moe qwen4_exp qwen4_exp_text recurrent_gemma roberta roberta-prelayernorm roc_bert roformer rwkv
    seamless_m4t seamless_m4t_v2 seed_oss shieldgemma2 smollm3 smolvlm solar_open speech_to_text speecht5
    squeezebert stablelm starcoder2 step3p7 switch_transformers t5 t5gemma2 tapas trocr udop ultrabert
    ultravbert umt5 unlimited_ocr vaultgemma vibevoice video_llama_3 video_llava vipllava visual_bert
    voxtral_realtime whisper xglm xlm xlm-roberta xlm-roberta-xl xlnet xmod yoso youtu zamba zamba2 zaya
"""
_TIED_ON_DEMAND = frozenset(_TYPES_WITH_TIES.split())
"""Model types whose classes with a head (transformers 5.23) name what they tie where their configuration says so.

Not those of which a class has embeddings or a head that it does not tie to the others (BLIP, BLT, FLAVA, Pop2Piano,
T5Gemma): where a file has them in one memory as well, one name would not stand for all.
"""

_NEVER_TIED = frozenset({"BigBirdPegasusForCausalLM", "ElectraForPreTraining", "FunnelForPreTraining"})
"""Classes of these types that tie nothing. Of Llama 4 the text model does."""

_TYPES_THAT_TIE = """
    albert bart bert bert-generation big_bird bigbird_pegasus biogpt blenderbot blenderbot-small bloom camembert
    cohere cohere2 convbert ctrl data2vec-text deberta deberta-v2 distilbert electra ernie esm falcon falcon_mamba
    flaubert fnet funnel gemma gemma2 gemma3_text gpt-sw3 gpt2 gpt_bigcode gpt_neo gpt_neox_japanese ibert jetmoe
    layoutlm led longformer m2m_100 mamba marian mbart megatron-bert mobilebert modernbert modernbert-decoder mpnet
    mpt mra mvp nllb-moe nystromformer openai-gpt opt pegasus pegasus_x plbart prophetnet recurrent_gemma roberta
    roberta-prelayernorm roc_bert roformer smollm3 speech_to_text squeezebert starcoder2 switch_transformers tapas
    trocr visual_bert whisper xglm xlm xlm-roberta xlm-roberta-xl xlnet xmod yoso
"""
_TIED_BY_DEFAULT = _TIED_WHATEVER_IT_SAYS | frozenset(_TYPES_THAT_TIE.split())
"""Model types that tie where config.json does not say (transformers 5.23), of those whose weights often are `.bin`
files. Of a type that is missing here or above every name is written, which takes room and loads as well."""

_PARTS = ("text_config", "decoder")
"""Where the configuration of a model of several has that of the part with the head."""


def is_tied_again(config: Any) -> bool:
    """Return whether the model that `config` (the JSON of a config.json) describes ties its embeddings when loaded.

    transformers 5.23 does so where `tie_word_embeddings` is true for the model, and for the part of it with the head,
    if its class names what to tie (`PreTrainedModel.get_expanded_tied_weights_keys`). False where that is not known.

    >>> is_tied_again({"model_type": "gpt2"}), is_tied_again({"model_type": "gpt2", "tie_word_embeddings": False})
    (True, False)
    """
    if not isinstance(config, dict) or "auto_map" in config:  # the repo's own code ties what it likes
        return False
    classes, kind = config.get("architectures"), config.get("model_type")
    if not isinstance(kind, str) or (isinstance(classes, list) and any(name in _NEVER_TIED for name in classes)):
        return False
    if kind in _TIED_WHATEVER_IT_SAYS:
        return True
    parts = [config, *(part for part in map(config.get, _PARTS) if isinstance(part, dict))]
    is_asked = all(
        part.get("tie_word_embeddings", part.get("model_type") in _TIED_BY_DEFAULT) is True for part in parts
    )
    return is_asked and kind in _TIED_ON_DEMAND
