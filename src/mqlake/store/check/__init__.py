"""Look into a store, verify it, rebuild what is derived, and repair it."""
