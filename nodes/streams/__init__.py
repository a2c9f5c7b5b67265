"""The stream plane of a node: pull workers over long-lived connections (docs/protocol.md)."""
