"""The broker: what clients ask of a store, over the wire."""
