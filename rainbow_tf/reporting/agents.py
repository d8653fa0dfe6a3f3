"""Labels and colours of the agents, in the paper's order."""

import itertools
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

# Okabe and Ito's colours, which colour-blind readers can tell apart. As in the paper, an ablation
# is dashed and has the colour of the baseline that introduced the component.
_BLACK, _GREY = "#000000", "#8a8a8a"
_DOUBLE, _PRIORITY, _DUELING = "#E69F00", "#009E73", "#56B4E9"
_MULTI_STEP, _DISTRIBUTIONAL, _NOISY = "#CC79A7", "#0072B2", "#D55E00"
_SPARE_COLOURS = ("#882255", "#117733", "#332288", "#999933", "#AA4499", "#44AA99")

Value = TypeVar("Value")


class Style(NamedTuple):
    """How an agent looks in every figure and table."""

    label: str
    colour: str
    line: str = "-"
    width: float = 1.5


Look = Mapping[str, Style]
_STYLES = {
    "dqn": Style("DQN", _GREY),
    "a3c": Style("A3C", _MULTI_STEP),
    "ddqn": Style("DDQN", _DOUBLE),
    "prioritized_ddqn": Style("Prioritized DDQN", _PRIORITY),
    "dueling_ddqn": Style("Dueling DDQN", _DUELING),
    "distributional_dqn": Style("Distributional DQN", _DISTRIBUTIONAL),
    "noisy_dqn": Style("Noisy DQN", _NOISY),
    "rainbow": Style("Rainbow", _BLACK, width=2.4),
    "apex": Style("Ape-X", _SPARE_COLOURS[0], "-."),
    "quantile": Style("Rainbow, quantiles", _SPARE_COLOURS[1], "-."),
    "munchausen": Style("Munchausen Rainbow", _SPARE_COLOURS[2], "-."),
    "iqn": Style("IQN", _SPARE_COLOURS[3]),
    "beyond": Style("Beyond The Rainbow, small network", _SPARE_COLOURS[4], width=2.0),
    "beyond_impala": Style("Beyond The Rainbow", _SPARE_COLOURS[4], width=2.0),
    "n20_data_efficient": Style("Data-efficient Rainbow", _BLACK, "-."),
    "simple": Style("SimPLe", _SPARE_COLOURS[1], ":"),
    "drq_eps_n10": Style("DrQ(ε)", _DUELING, ":"),
    "spr": Style("SPR", _PRIORITY, ":"),
    "iris": Style("IRIS", _MULTI_STEP, ":"),
    "efficient_zero": Style("EfficientZero", _DISTRIBUTIONAL, ":"),
    "bbf": Style("BBF", _NOISY, ":"),
    "no_double": Style("no double", _DOUBLE, "--"),
    "no_priority": Style("no priority", _PRIORITY, "--"),
    "no_dueling": Style("no dueling", _DUELING, "--"),
    "no_multi_step": Style("no multi-step", _MULTI_STEP, "--"),
    "no_distributional": Style("no distribution", _DISTRIBUTIONAL, "--"),
    "no_noisy": Style("no noisy", _NOISY, "--"),
}
ABLATIONS = tuple(name for name in _STYLES if name.startswith("no_"))


def styles(names: Iterable[str]) -> dict[str, Style]:
    """Styles of the agents in the paper's order, unknown agents last.

    A name with a note, such as `rainbow (paper)`, keeps its colour and is dotted.
    """
    bases = {name: _base(name) for name in names}
    unknown = sorted(set(bases.values()) - set(_STYLES))
    spare = itertools.cycle(_SPARE_COLOURS)
    known = _STYLES | {name: Style(name.replace("_", " "), next(spare), "-.") for name in unknown}
    order = list(known)
    found = {}
    for name, base in sorted(bases.items(), key=lambda pair: (order.index(pair[1]), pair[0])):
        style = found[name] = known[base]
        if name != base:
            found[name] = style._replace(label=style.label + name.removeprefix(base), line=":")
    return found


def panels(lines: Mapping[str, Value]) -> dict[str, dict[str, Value]]:
    """Lines by panel, as in the paper: Rainbow and the baselines, Rainbow and its ablations."""
    ordered = list(styles(lines))
    ablations = [name for name in ordered if _base(name) in ABLATIONS]
    others = [name for name in ordered if name not in ablations]
    shared = [name for name in others if _base(name) in ("rainbow", "dqn")]
    titles = {"Agents": others}
    if ablations:
        baselines = {"Rainbow and baselines": others} if len(others) > len(shared) else {}
        titles = baselines | {"Rainbow and its ablations": shared + ablations}
    return {title: {name: lines[name] for name in names} for title, names in titles.items()}


def _base(name: str) -> str:
    return name.split(" ")[0]
