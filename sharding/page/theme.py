"""Set the colours and fonts of the page in Gradio's theme. All other styles are in `assets/*.css`."""

import gradio as gr

_SANS = ("ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif")
_MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace")


def theme() -> gr.themes.Base:
    """Return the theme: the system's own fonts and the colours of the style sheet. It downloads nothing."""
    both = {
        "body_background_fill": "var(--ground)",
        "body_text_color": "var(--ink)",
        "body_text_color_subdued": "var(--muted)",
        "background_fill_primary": "var(--surface)",
        "background_fill_secondary": "var(--ground)",
        "border_color_primary": "var(--line)",
        "border_color_accent": "var(--accent)",
        "color_accent_soft": "var(--accent-soft)",
        "link_text_color": "var(--accent)",
        "link_text_color_hover": "var(--accent)",
        "link_text_color_active": "var(--accent)",
        "link_text_color_visited": "var(--accent)",
        "block_background_fill": "transparent",
        "block_border_width": "0px",
        "block_label_text_color": "var(--ink)",
        "block_title_text_color": "var(--ink)",
        "block_info_text_color": "var(--muted)",
        "panel_background_fill": "transparent",
        "input_background_fill": "var(--surface)",
        "input_background_fill_focus": "var(--surface)",
        "input_border_color": "var(--edge)",
        "input_border_color_focus": "var(--accent)",
        "input_border_width": "1px",
        "checkbox_border_width": "1px",
        "checkbox_label_border_width": "1px",
        "input_placeholder_color": "var(--muted)",
        "button_primary_background_fill": "var(--accent)",
        "button_primary_background_fill_hover": "var(--accent-strong)",
        "button_primary_text_color": "var(--on-accent)",
        "button_primary_text_color_hover": "var(--on-accent)",
        "button_secondary_background_fill": "var(--surface)",
        "button_secondary_background_fill_hover": "var(--accent-soft)",
        "button_secondary_text_color": "var(--ink)",
        "button_secondary_text_color_hover": "var(--ink)",
        "button_secondary_border_color": "var(--edge)",
        "button_cancel_background_fill": "var(--surface)",
        "button_cancel_background_fill_hover": "var(--bad-soft)",
        "button_cancel_text_color": "var(--bad)",
        "button_cancel_text_color_hover": "var(--bad)",
        "checkbox_background_color": "var(--surface)",
        "checkbox_background_color_selected": "var(--accent)",
        "checkbox_border_color": "var(--edge)",
        "checkbox_border_color_selected": "var(--accent)",
        "checkbox_label_background_fill": "var(--surface)",
        "checkbox_label_background_fill_hover": "var(--accent-soft)",
        "checkbox_label_background_fill_selected": "var(--accent-soft)",
        "checkbox_label_border_color": "var(--edge)",
        "checkbox_label_text_color": "var(--ink)",
        "checkbox_label_text_color_selected": "var(--ink)",
    }
    dark = {f"{name}_dark": value for name, value in both.items() if not name.endswith("_width")}
    base = gr.themes.Base(
        font=_SANS,
        font_mono=_MONO,
        text_size=gr.themes.sizes.text_lg,
        radius_size=gr.themes.sizes.radius_md,
        spacing_size=gr.themes.sizes.spacing_lg,
    )
    return base.set(**both, **dark)
