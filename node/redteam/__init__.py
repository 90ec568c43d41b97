"""The red team's matrix: attacks by shares, seeds and layers switched off, and the report on them."""
