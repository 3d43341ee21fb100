"""Set the colours and fonts of the page in Gradio's theme. All other styles are in `assets/*.css`."""

import gradio as gr

_SANS = ("ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif")
_MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace")


_COLOURS = {
    "var(--ground)": ("body_background_fill", "background_fill_secondary"),
    "var(--surface)": (
        *("background_fill_primary", "input_background_fill", "input_background_fill_focus"),
        *("button_secondary_background_fill", "button_cancel_background_fill"),
        *("checkbox_background_color", "checkbox_label_background_fill"),
    ),
    "var(--ink)": (
        *("body_text_color", "block_label_text_color", "block_title_text_color", "checkbox_label_text_color"),
        *("button_secondary_text_color", "button_secondary_text_color_hover", "checkbox_label_text_color_selected"),
    ),
    "var(--muted)": ("body_text_color_subdued", "block_info_text_color", "input_placeholder_color"),
    "var(--line)": ("border_color_primary",),
    "var(--edge)": (
        *("input_border_color", "button_secondary_border_color"),
        *("checkbox_border_color", "checkbox_label_border_color"),
    ),
    "var(--accent)": (
        *("border_color_accent", "button_primary_background_fill", "input_border_color_focus"),
        *("link_text_color", "link_text_color_hover", "link_text_color_active", "link_text_color_visited"),
        *("checkbox_background_color_selected", "checkbox_border_color_selected"),
    ),
    "var(--accent-strong)": ("button_primary_background_fill_hover",),
    "var(--accent-soft)": (
        *("color_accent_soft", "button_secondary_background_fill_hover"),
        *("checkbox_label_background_fill_hover", "checkbox_label_background_fill_selected"),
    ),
    "var(--on-accent)": ("button_primary_text_color", "button_primary_text_color_hover"),
    "var(--bad)": ("button_cancel_text_color", "button_cancel_text_color_hover"),
    "var(--bad-soft)": ("button_cancel_background_fill_hover",),
    "transparent": ("block_background_fill", "panel_background_fill"),
    "0px": ("block_border_width",),
    "1px": ("input_border_width", "checkbox_border_width", "checkbox_label_border_width"),
}
"""What Gradio's theme paints with each colour of the style sheet. Its last rows are widths."""


def theme() -> gr.themes.Base:
    """Return the theme: the system's own fonts and the colours of the style sheet. It downloads nothing."""
    both = {name: colour for colour, names in _COLOURS.items() for name in names}
    dark = {f"{name}_dark": value for name, value in both.items() if not name.endswith("_width")}
    base = gr.themes.Base(
        font=_SANS,
        font_mono=_MONO,
        text_size=gr.themes.sizes.text_lg,
        radius_size=gr.themes.sizes.radius_md,
        spacing_size=gr.themes.sizes.spacing_lg,
    )
    return base.set(**both, **dark)
