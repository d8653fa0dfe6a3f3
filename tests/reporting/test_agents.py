from made_up_runs import AGENTS

from rainbow_tf.reporting.agents import ABLATIONS, groups, styles


def test_colours_are_told_apart():
    look = styles(AGENTS)
    assert len({(style.colour, style.line) for style in look.values()}) == len(AGENTS)
    assert list(look)[:2] == ["dqn", "ddqn"]
    # The same agent looks the same in whatever company.
    assert styles(["no_noisy"])["no_noisy"] == look["no_noisy"]
    assert styles(["rainbow (paper)"])["rainbow (paper)"].label == "Rainbow (paper)"


def test_panels_are_those_of_the_paper():
    panels = groups(AGENTS)
    assert panels["Rainbow and its ablations"] == ["dqn", "rainbow", *ABLATIONS]
    assert not set(panels["Rainbow and baselines"]) & set(ABLATIONS)
    assert set().union(*panels.values()) == set(AGENTS)
    assert groups(["rainbow"]) == {"Agents": ["rainbow"]}
    assert list(groups(["rainbow", "no_noisy"])) == ["Rainbow and its ablations"]
