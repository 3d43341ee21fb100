"""One job on many machines: its parts, who does them, and the engine that runs them."""
