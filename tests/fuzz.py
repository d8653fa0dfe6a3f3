"""Mutations of files, as a disk, a person or an attacker makes them, for every reader.

A reader takes a folder and returns what it read, or raises ConfigError with one sentence.
"""

import json
import random

from rainbow_tf.config import ConfigError

VALUES = (None, True, -1, 0, 1.5, 2**31, 10**40, 1e308, "", "a\x1b[2J\n", "x" * 5000, [], {}, [[1]])
TEXTS = (b"NaN", b"1e999", b"9" * 5000, b"[" * 3000, b'"\\ud800"', b"\xff", b"\0" * 200_000, b",,,")


def mutate(data: bytes, rng: random.Random) -> bytes:
    """The bytes with one or several changes; JSON may also change within its structure."""
    if rng.random() < 0.4 and data[:1] in b"{[":
        value = json.loads(data)
        _mutate_value(value, rng)
        return json.dumps(value).encode()
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        place = rng.randrange(len(changed) + 1)
        kind = rng.randrange(6)
        if kind == 0 and place < len(changed):
            changed[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del changed[place:]
        elif kind == 2:
            del changed[place : place + rng.randrange(40)]
        elif kind == 3:
            changed[place : place + 30] = bytes(30)
        elif kind == 4:
            changed[place:place] = rng.choice(TEXTS)
        else:
            other = rng.randrange(len(changed) + 1)
            changed[place : place + 20] = changed[other : other + 20]
    return bytes(changed)


def _mutate_value(value, rng):
    """Replaces, removes or renames something at a random depth."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    if not keys:
        return
    key = rng.choice(keys)
    if isinstance(value[key], (dict, list)) and value[key] and rng.random() < 0.8:
        _mutate_value(value[key], rng)
    elif rng.random() < 0.2:
        del value[key]
    else:
        value[key] = rng.choice(VALUES)


def outcome(read, folder):
    """What the reader returns, or its sentence; any other exception fails the test."""
    try:
        return read(folder)
    except ConfigError as error:
        sentence = str(error)
        assert len(sentence) < 3000, sentence[:300]
        return sentence
