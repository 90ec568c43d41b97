"""The run told back: figures from its records, a page, and lines for the terminal."""
