"""What all commands share: their flags, their help, and errors as one sentence."""

import dataclasses
import difflib
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Collection, Sequence
from typing import Any

from absl import flags

from rainbow_tf.config import Config, ConfigError

_NOT_LISTED = ("help", "helpfull", "flagfile", "undefok")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """A command: `python -m` and `rainbow-tf` call `main`, and so do tests."""

    about: str  # what the help begins with
    define_flags: Callable[[flags.FlagValues], None]
    run: Callable[..., None]  # takes the flags, and the argument if there is one
    example: str  # what to type, for someone who typed something else
    interrupted: str = "interrupted."
    argument: str | None = None  # name of the one argument that is not a flag
    rewrite: Callable[[Sequence[str]], list[str]] = list

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


def define_settings(values: flags.FlagValues, names: Collection[str] | None = None) -> None:
    """Defines one absl flag per setting, or per named setting."""
    kinds = typing.get_type_hints(Config)
    for field in dataclasses.fields(Config):
        if names is not None and field.name not in names:
            continue
        kind, *_ = typing.get_args(kinds[field.name]) or (kinds[field.name],)
        default: Any = field.default
        help_text, choices = field.metadata["help"], field.metadata["choices"]
        if kind is bool:
            flags.DEFINE_bool(field.name, default, help_text, flag_values=values)
        elif kind is int:
            flags.DEFINE_integer(field.name, default, help_text, flag_values=values)
        elif kind is float:
            flags.DEFINE_float(field.name, default, help_text, flag_values=values)
        elif choices is not None:
            flags.DEFINE_enum(field.name, default, list(choices), help_text, flag_values=values)
        else:
            flags.DEFINE_string(field.name, default, help_text, flag_values=values)


def settings(values: flags.FlagValues) -> Config:
    """The settings that the parsed flags give."""
    given: dict[str, Any] = {f.name: values[f.name].value for f in dataclasses.fields(Config)}
    return Config(**given)


def define_snapshot_flags(values: flags.FlagValues) -> None:
    """Defines the flags by which a command chooses the weights of a run."""
    flags.DEFINE_string("run_dir", None, "Folder of the run.", flag_values=values)
    flags.DEFINE_enum(
        "snapshot",
        None,
        ["best", "latest"],
        "best: the weights with the highest evaluation, the default. latest: the newest "
        "checkpoint.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "checkpoint",
        None,
        "Number of a checkpoint to take instead of the best weights.",
        flag_values=values,
    )


def wants_best(values: flags.FlagValues) -> bool:
    """Whether the snapshot flags ask for the best weights."""
    if values.checkpoint is not None and values.snapshot == "best":
        raise ConfigError("--checkpoint and --snapshot=best exclude each other; give one of them.")
    return values.checkpoint is None and values.snapshot != "latest"
