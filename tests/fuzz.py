"""Mutations of files and answers, as a disk, a person or an attacker makes them.

A reader takes a folder and returns what it read, or raises ConfigError with one sentence.
"""

import copy
import json
import random

from rainbow_tf.config import ConfigError

VALUES = (None, True, -1, 0, 1.5, 2**31, 10**40, 1e308, "", "a\x1b[2J\n", "x" * 5000, [], {}, [[1]])
VALUES += ("-1", "DT_STRING", "DT_INVALID", {"size": {}}, [{"size": "7"}] * 70, [1] * 300)
TEXTS = (b"NaN", b"1e999", b"9" * 5000, b"[" * 3000, b'"\\ud800"', b"\xff", b"\0" * 200_000, b",,,")


def mutate(data: bytes, rng: random.Random) -> bytes:
    """The bytes with one or several changes; JSON may also change within its structure."""
    if rng.random() < 0.4 and data[:1] in b"{[":
        return json.dumps(mutate_json(json.loads(data), rng)).encode()
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


def mutate_json(value, rng: random.Random):
    """A copy in which something, at a random depth, is removed or another value."""
    if not isinstance(value, (dict, list)) or not value or rng.random() < 0.1:
        return copy.deepcopy(rng.choice(VALUES))
    value = copy.copy(value)
    key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
    if rng.random() < 0.1:
        del value[key]
    else:
        value[key] = mutate_json(value[key], rng)
    return value


def outcome(read, folder):
    """What the reader returns, or its sentence; any other exception fails the test."""
    try:
        return read(folder)
    except ConfigError as error:
        sentence = str(error)
        assert len(sentence) < 3000, sentence[:300]
        return sentence
