"""Chains of turns, for adapters of frameworks: of two processes that write to one chain, one is refused."""
