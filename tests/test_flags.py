"""Presets: they parse, and hold what they say."""

from pathlib import Path

import pytest

import rainbow_tf.flags

PRESETS = Path(rainbow_tf.flags.__file__).parent


@pytest.mark.parametrize("path", sorted(PRESETS.rglob("*.cfg")), ids=lambda path: path.stem)
def test_presets_are_valid_and_explained(path, preset):
    preset(path.relative_to(PRESETS))
    assert path.read_text().startswith("# ")


def test_cartpole_support_spans_its_returns(preset):
    config = preset("cartpole.cfg")
    # A reward of 1 a step: returns lie between 0 and 1 / (1 - discount).
    assert config.v_min == 0
    assert config.v_max == pytest.approx(1 / (1 - config.discount))


def test_explicit_flags_win_over_a_preset(preset):
    config = preset("minatar.cfg", "--environment=MinAtar/Asterix-v1", "--seed=4")
    assert config.environment == "MinAtar/Asterix-v1"
    assert config.folder == Path("runs/minatar_asterix_v1/rainbow/seed_4")
