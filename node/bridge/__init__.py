"""A lane to the peers of an existing swarm client: off by default, unsigned, and capped. See docs/bridge.md."""
