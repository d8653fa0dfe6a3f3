from made_up_runs import AGENTS

from rainbow_tf.reporting.agents import ABLATIONS, panels, styles


def test_colours_are_distinguishable():
    look = styles(AGENTS)
    assert len({(style.colour, style.line) for style in look.values()}) == len(AGENTS)
    assert list(look)[:2] == ["dqn", "ddqn"]
    # The same agent looks the same in whatever company.
    assert styles(["no_noisy"])["no_noisy"] == look["no_noisy"]
    assert styles(["rainbow (paper)"])["rainbow (paper)"].label == "Rainbow (paper)"


def test_panels_are_those_of_the_paper():
    found = {title: list(lines) for title, lines in panels(AGENTS).items()}
    assert found["Rainbow and its ablations"] == ["dqn", "rainbow", *ABLATIONS]
    assert not set(found["Rainbow and baselines"]) & set(ABLATIONS)
    assert set().union(*found.values()) == set(AGENTS)
    assert panels({"rainbow": 1}) == {"Agents": {"rainbow": 1}}
    assert list(panels({"rainbow": 1, "no_noisy": 2})) == ["Rainbow and its ablations"]
