"""What a visitor sees: one Gradio page over a desk. Shows plans, events and reports, and decides nothing."""
