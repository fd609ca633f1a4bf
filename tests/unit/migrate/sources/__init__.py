"""Rewards in the manner of other frameworks, written for these tests."""
