"""Flags of slime and Relax in terms of ours: nearly all have the same name."""
