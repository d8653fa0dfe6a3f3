"""What all commands share: their flags, their help, and errors as one sentence."""

import dataclasses
import inspect
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

import rainbow_tf.flags as presets
from rainbow_tf.config import TORSO, Config, ConfigError, hint
from rainbow_tf.process import INTERRUPTED, check_trusted, printable, untrusted
from rainbow_tf.runs.folder import MODULES, read_config
from rainbow_tf.runs.store import has_best

ALL_SETTINGS = tuple(field.name for field in dataclasses.fields(Config))
# Defaults outside Atari, where a frame is one step and runs are short.
SMALL = {
    "min_history_frames": 1_000,
    "target_period_frames": 500,
    "replay_capacity": 100_000,
    "epsilon_decay_frames": 10_000,
    "eval_period_frames": 20_000,
    "eval_frames": 10_000,
    "log_period_frames": 1_000,
}
_FIRST = ("game", "environment", "preset", "frames", "seed", "run_dir", "restart")  # in the help
_NOT_LISTED = ("help", "helpfull", "flagfile", "undefok")


class Flag(NamedTuple):
    """A flag of a command, besides the settings; its type is the default's, or `kind`."""

    default: Any
    help: str
    kind: type = str  # if the default is None
    choices: Sequence[str] | None = None
    minimum: float | None = None
    maximum: float | None = None


# How commands name a run.
RUN_FLAGS = {
    "run_dir": Flag(None, "Folder of the run."),
    **{name: Flag(None, f"The run's --{name}, to trust the code it names.") for name in MODULES},
}
# How commands choose the weights of a run.
SNAPSHOT_FLAGS = RUN_FLAGS | {
    "snapshot": Flag(
        None,
        "best: the weights with the highest evaluation. latest: the newest checkpoint. Default: "
        "best, or latest before the first evaluation.",
        choices=("best", "latest"),
    ),
    "checkpoint": Flag(None, "Number of a checkpoint to take instead of the best weights.", int),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """A command: `python -m` and `rainbow-tf` call `main`, and so do tests.

    Its help begins with the docstring of the module of `run`.
    """

    options: Mapping[str, Flag]
    settings: Collection[str] = ()  # names of the settings that are flags too
    run: Callable[..., None]  # takes the flags, and the argument if there is one
    example: str  # what to type, for someone who typed something else
    interrupted: str = "interrupted."
    argument: str | None = None  # name of the one argument that is not a flag
    rewrite: Callable[[Sequence[str]], list[str]] = list

    def define_flags(self, values: flags.FlagValues) -> None:
        """Defines the flags of this command."""
        define_settings(values, [name for name in self.settings if name not in self.options])
        for name, flag in self.options.items():
            _define(values, name, flag)

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """Parses the flags and runs; an error that the user can fix is one sentence, status 1."""
        values = flags.FlagValues()
        self.define_flags(values)
        for name in ("help", "helpfull"):
            flags.DEFINE_bool(name, False, "Show this help.", flag_values=values)
        try:
            found = self._parse(values, sys.argv if arguments is None else arguments)
            if values.help or values.helpfull:
                print(self._help(values))
                return
            if len(found) != (self.argument is not None):
                stray = f"'{found[0]}' is not a flag; " if self.argument is None else ""
                raise ConfigError(f"{stray}{self.example}.")
            self.run(values, *found)
        except ConfigError as error:
            sys.exit(f"rainbow_tf: {printable(str(error))}")
        except KeyboardInterrupt:
            print(f"rainbow_tf: {self.interrupted}", file=sys.stderr)
            sys.exit(INTERRUPTED)

    def _parse(self, values: flags.FlagValues, arguments: Sequence[str]) -> list[str]:
        """Sets the flags; returns the arguments that are no flags."""
        try:
            return values(self.rewrite(arguments))[1:]
        except flags.UnrecognizedFlagError as error:
            way_out = hint(error.flagname, values, "--help lists them.", flag="--")
            if error.flagname in ("environment", "environments", "game") and "games" in values:
                way_out = "give --games, which takes games and Gymnasium ids."
            raise ConfigError(f"--{error.flagname} is not a flag; {way_out}") from error
        except ConfigError:
            raise
        except (flags.Error, ValueError) as error:  # a ValueError for --noflag=value
            found = re.fullmatch(r"flag (--(\w+)=.*?): .*", str(error), re.DOTALL)
            if found is None:
                text = str(error).removeprefix("ERROR:: ")
                raise ConfigError(f"{text}; --help lists the flags.") from error
            wanted = _wanted(values[found[2]])
            raise ConfigError(f"{found[1]} cannot be used; it must be {wanted}.") from error

    def _help(self, values: flags.FlagValues) -> str:
        """The flags by group: those met first, those of the command, then the settings."""
        groups = {"Start here": list(_FIRST), "This command": list(self.options)} | setting_groups()
        left = {name for name in values if name not in _NOT_LISTED}
        lines = [str(sys.modules[self.run.__module__].__doc__).strip()]
        for heading, names in groups.items():
            listed = [name for name in names if name in left]
            lines += ["", f"{heading}:"] if listed else []
            for name in listed:
                left.remove(name)
                lines += _flag_help(name, values[name])
        return "\n".join(lines)


def setting_groups() -> dict[str, list[str]]:
    """Names of the settings by the comment above them in `Config`."""
    groups: dict[str, list[str]] = {}
    for line in inspect.getsource(Config).splitlines():
        if heading := re.fullmatch(r"    # (.+)\.", line):
            names = groups.setdefault(heading[1], [])
        elif (field := re.match(r"    (\w+): .*_setting\(", line)) is not None:
            names.append(field[1])
    return groups


def _flag_help(name: str, flag: flags.Flag) -> list[str]:
    text = f"--[no]{name}: " if flag.boolean else f"--{name}: "
    text += flag.help.partition(";     repeat this option")[0]  # which absl adds to lists
    if flag.default not in (None, []):
        elsewhere = f"; {SMALL[name]} outside Atari" if name in SMALL else ""
        default = str(flag.default_as_str).strip("'")
        text += f" (default: {default}{elsewhere})"
    width = flags.get_help_width()
    return textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ")


def _wanted(flag: flags.Flag) -> str:
    if isinstance(flag.parser, flags.EnumParser):
        return " or ".join(flag.parser.enum_values)
    return "true or false" if flag.boolean else str(flag.parser.syntactic_help)


def _define(values: flags.FlagValues, name: str, flag: Flag) -> None:
    kind = flag.kind if flag.default is None else type(flag.default)
    common: dict[str, Any] = {"flag_values": values}
    if flag.choices is not None:
        flags.DEFINE_enum(name, flag.default, list(flag.choices), flag.help, **common)
    elif kind in (int, float):
        define = flags.DEFINE_integer if kind is int else flags.DEFINE_float
        common |= {"lower_bound": flag.minimum, "upper_bound": flag.maximum}
        define(name, flag.default, flag.help, **common)
    elif kind is bool:
        flags.DEFINE_bool(name, flag.default, flag.help, **common)
    elif kind is list:
        flags.DEFINE_multi_string(name, flag.default, flag.help, **common)
    else:
        flags.DEFINE_string(name, flag.default, flag.help, **common)


def define_settings(values: flags.FlagValues, names: Collection[str] = ALL_SETTINGS) -> None:
    """Defines one absl flag per named setting; `Config` checks their bounds."""
    kinds = typing.get_type_hints(Config)
    for field in dataclasses.fields(Config):
        if field.name in names:
            kind, *_ = typing.get_args(kinds[field.name]) or (kinds[field.name],)
            choices = None if field.metadata["or_module"] else field.metadata["choices"]
            _define(values, field.name, Flag(field.default, field.metadata["help"], kind, choices))


def settings(values: flags.FlagValues, **given: Any) -> Config:
    """The settings of the parsed flags, and those given by name."""
    chosen: dict[str, Any] = {name: values[name].value for name in ALL_SETTINGS} | given
    if chosen["game"] is None:
        left_out = [n for n in SMALL if not values[n].present and n not in given]
        chosen |= {name: SMALL[name] for name in left_out}
    untrusted.difference_update(chosen[name] for name in MODULES)
    return Config(**chosen)


def parse_settings(arguments: Sequence[str], **given: Any) -> Config:
    """The settings of a training command with these arguments, and those given by name."""
    values = flags.FlagValues()
    define_settings(values)
    values(presets.expand(["rainbow_tf.main", *arguments]))
    return settings(values, **given)


def run_settings(values: flags.FlagValues, folder: str | Path) -> Config:
    """The settings of a run; Python code that they name must be given as a flag too."""
    again = {name: values[name].value for name in MODULES if values[name].value is not None}
    config = read_config(Path(folder), again=again)
    for name, value in again.items():
        if value != getattr(config, name):
            raise ConfigError(f"--{name}={value} is not the run's {getattr(config, name)}.")
    untrusted.difference_update(again.values())
    check_trusted("environment", config.environment)
    if not (config.folder / TORSO).exists():
        check_trusted("network", config.network)
    return config


def wanted_snapshot(values: flags.FlagValues, config: Config) -> str | int:
    """The weights that the flags ask for: best, latest, or the number of a checkpoint."""
    if values.checkpoint is not None and values.snapshot == "best":
        raise ConfigError("--checkpoint and --snapshot=best exclude each other; give one of them.")
    if values.checkpoint is not None:
        return values.checkpoint
    return values.snapshot or ("best" if has_best(config.folder) else "latest")
