"""Drawn sequence lengths, the same as cli/cases/lengths.cpp draws. Standard library only."""

import itertools

_MASK = (1 << 64) - 1


def _mix(x):
    """The finaliser of splitmix64, as in cli/cases/random.h."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)


def _uniform(seed, name, count):
    """The first numbers in [0,1) of cli/cases/random.h's stream of this seed and name."""
    step = 0x9E3779B97F4A7C15
    key = _mix((seed + step) & _MASK)
    for letter in name.encode():
        key = _mix(key ^ letter)
    return [(_mix((key + i * step) & _MASK) >> 40) * 2.0**-24 for i in range(count)]


def _log_uniform(rule, tokens, seed):
    smallest, largest, sequences = float(rule["smallest"]), float(rule["largest"]), rule["sequences"]
    drawn = [smallest * (largest / smallest) ** u for u in _uniform(seed, "lengths", sequences)]
    # Added one by one: sum() rounds otherwise from Python 3.12 on.
    scale = (tokens - sequences) / list(itertools.accumulate(drawn))[-1]
    lengths = [1 + int(length * scale) for length in drawn]
    for i in range(tokens - sum(lengths)):
        lengths[i] += 1
    return lengths


def cu_seqlens(rule, tokens, seed):
    """Offsets, sequences + 1 of them, for the field `lengths` of a case (cli/cases/lengths.h)."""
    if rule["distribution"] == "equal":
        return [i * tokens // rule["sequences"] for i in range(rule["sequences"] + 1)]
    if rule["distribution"] != "log_uniform":
        raise ValueError(f"lengths.distribution: must be equal or log_uniform, got {rule['distribution']}")
    return list(itertools.accumulate(_log_uniform(rule, tokens, seed), initial=0))
