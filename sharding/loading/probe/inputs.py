"""The fixed input of a forward pass, for models of text, pictures and sound."""

import inspect
from typing import Any

_TOKENS = 12
_FIRST_TOKEN = 3
_SOUND_SAMPLES = 4000


def fixed_inputs(model: Any) -> dict[str, Any]:
    """Return the input that the forward pass of `model` needs. It is always the same for the same configuration."""
    import torch

    config = model.config
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    vocabulary = getattr(text, "vocab_size", None) or 100
    tokens = (torch.arange(_FIRST_TOKEN, _FIRST_TOKEN + _TOKENS) % vocabulary).view(1, _TOKENS)
    known = inspect.signature(model.forward).parameters
    names = {model.main_input_name}
    # Models with two towers, such as CLIP, need both inputs. Text models that accept pictures need only text.
    if "pixel_values" in known and not model.can_generate() and getattr(config, "vision_config", None):
        names |= {"pixel_values", "input_ids"} & set(known)
    makers = {
        "input_ids": lambda: tokens,
        "pixel_values": lambda: _picture(config, model.dtype),
        "input_values": lambda: _ramp((1, _SOUND_SAMPLES), model.dtype),
        "input_features": lambda: _ramp(_spectrogram(config), model.dtype),
    }
    inputs = {name: makers[name]() for name in sorted(names) if name in makers}
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in known:
        inputs["decoder_input_ids"] = tokens[:, :4]
    return inputs


def _picture(config: Any, dtype: Any) -> Any:
    vision = getattr(config, "vision_config", None) or config
    size = getattr(vision, "image_size", 224)
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return _ramp((1, getattr(vision, "num_channels", 3), height, width), dtype)


def _spectrogram(config: Any) -> tuple[int, int, int]:
    length = 2 * getattr(config, "max_source_positions", 50)
    return 1, getattr(config, "num_mel_bins", 80), length


def _ramp(shape: tuple[int, ...], dtype: Any) -> Any:
    import torch

    count = 1
    for length in shape:
        count *= length
    return torch.linspace(-1, 1, count).view(shape).to(dtype)
