"""What all commands share: their flags, their help, and errors as one sentence."""

import dataclasses
import difflib
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags

import rainbow_tf.flags as presets
from rainbow_tf.config import Config, ConfigError

_NOT_LISTED = ("help", "helpfull", "flagfile", "undefok")


ALL_SETTINGS = tuple(field.name for field in dataclasses.fields(Config))


class Flag(NamedTuple):
    """A flag of a command, besides the settings; its type is the default's, or `kind`."""

    default: Any
    help: str
    kind: type = str  # if the default is None
    choices: Sequence[str] | None = None
    minimum: float | None = None
    maximum: float | None = None


# How commands choose the weights of a run.
SNAPSHOT_FLAGS = {
    "run_dir": Flag(None, "Folder of the run."),
    "snapshot": Flag(
        None,
        "best: the weights with the highest evaluation, the default. latest: the newest "
        "checkpoint.",
        choices=("best", "latest"),
    ),
    "checkpoint": Flag(None, "Number of a checkpoint to take instead of the best weights.", int),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """A command: `python -m` and `rainbow-tf` call `main`, and so do tests."""

    about: str  # what the help begins with
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
            sys.exit(f"rainbow_tf: {error}")
        except KeyboardInterrupt:
            sys.exit(f"rainbow_tf: {self.interrupted}")

    def _parse(self, values: flags.FlagValues, arguments: Sequence[str]) -> list[str]:
        """Sets the flags; returns the arguments that are no flags."""
        try:
            return values(self.rewrite(arguments))[1:]
        except flags.UnrecognizedFlagError as error:
            close = difflib.get_close_matches(error.flagname, list(values), n=1)
            hint = f"did you mean --{close[0]}?" if close else "--help lists them."
            raise ConfigError(f"--{error.flagname} is not a flag; {hint}") from error
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
        lines = [self.about, ""]
        width = flags.get_help_width()
        for name in values:
            flag = values[name]
            if name in _NOT_LISTED:
                continue
            default = "" if flag.default is None else f" (default: {flag.default_as_str})"
            shown = f"--[no]{name}" if flag.boolean else f"--{name}"
            text = f"{shown}: {flag.help}{default}"
            lines += textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ")
        return "\n".join(lines)


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
    flagged = {name: values[name].value for name in ALL_SETTINGS}
    return Config(**{**flagged, **given})


def parse_settings(arguments: Sequence[str], **given: Any) -> Config:
    """The settings of a training command with these arguments, and those given by name."""
    values = flags.FlagValues()
    define_settings(values)
    values(presets.expand(["rainbow_tf.main", *arguments]))
    return settings(values, **given)


def wants_best(values: flags.FlagValues) -> bool:
    """Whether the snapshot flags ask for the best weights."""
    if values.checkpoint is not None and values.snapshot == "best":
        raise ConfigError("--checkpoint and --snapshot=best exclude each other; give one of them.")
    return values.checkpoint is None and values.snapshot != "latest"
