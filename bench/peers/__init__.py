"""Tandem and other libraries side by side: one process, one timer, one set of inputs, one fp64 reference.

    python -m bench.peers gla --case 'b4h32_*' --json results.json

Adding a peer is one file in providers/. What each needs installed: docs/measuring.md.
"""
