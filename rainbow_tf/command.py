"""How a command starts and ends: TensorFlow without its notes, errors as one sentence."""

import contextlib
import difflib
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from absl import app, flags

from rainbow_tf.config import ConfigError


def run_command(
    main: Callable[[list[str]], None], *, rewrite: Callable[[list[str]], list[str]] = list
) -> None:
    """Parses the flags, once they are rewritten, and runs a command.

    A flag that cannot be used ends in one sentence.
    """
    app.run(main, flags_parser=lambda arguments: _parse(arguments, rewrite))


def _parse(arguments: list[str], rewrite: Callable[[list[str]], list[str]]) -> list[str]:
    try:
        return flags.FLAGS(rewrite(arguments))
    except ConfigError as error:
        sys.exit(f"rainbow_tf: {error}")
    except flags.UnrecognizedFlagError as error:
        close = difflib.get_close_matches(error.flagname, list(flags.FLAGS), n=1)
        hint = f"did you mean --{close[0]}?" if close else "--help lists them."
        sys.exit(f"rainbow_tf: --{error.flagname} is not a flag; {hint}")
    except (flags.Error, ValueError) as error:  # a ValueError for --noflag=value
        found = re.fullmatch(r"flag (--(\w+)=.*?): .*", str(error), re.DOTALL)
        if found is None:
            sys.exit(f"rainbow_tf: {str(error).removeprefix('ERROR:: ')}; --help lists the flags.")
        wanted = _wanted(flags.FLAGS[found[2]])
        sys.exit(f"rainbow_tf: {found[1]} cannot be used; it must be {wanted}.")


def _wanted(flag: flags.Flag) -> str:
    if isinstance(flag.parser, flags.EnumParser):
        return " or ".join(flag.parser.enum_values)
    return "true or false" if flag.boolean else str(flag.parser.syntactic_help)


@contextlib.contextmanager
def errors_as_sentences(interrupted: str) -> Iterator[None]:
    """Ends the process with one sentence for what a user can mend, or says that they stopped it."""
    try:
        yield
    except ConfigError as error:
        sys.exit(f"rainbow_tf: {error}")
    except KeyboardInterrupt:
        sys.exit(f"rainbow_tf: {interrupted}")


class StopSignals:
    """Notes the first Ctrl-C or SIGTERM, for who ends in an orderly way; `second` ends at once."""

    def __init__(self, *, second: Callable[[int, Any], Any] | signal.Handlers):
        self.requested = False
        self._second = second
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._request)

    def _request(self, number: int, frame: object) -> None:
        self.requested = True
        signal.signal(number, self._second)


@contextlib.contextmanager
def _standard_error_held() -> Iterator[None]:
    """Keeps what native code writes to standard error, and shows it only on a failure."""
    sys.stderr.flush()
    original = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except Exception:
            held.seek(0)
            os.write(original, held.read())
            raise
        finally:
            os.dup2(original, 2)
            os.close(original)


@contextlib.contextmanager
def _interrupt_kept() -> Iterator[None]:
    """Makes a Ctrl-C inside a KeyboardInterrupt, whatever the code there makes of it.

    A native module that is interrupted when it is imported raises ImportError.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # ignored, or answered by somebody else
        return
    came = False

    def note(number: int, frame: object) -> None:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    try:
        yield
    except Exception:
        if not came:
            raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt


def load_tensorflow(threads: int | None = None) -> None:
    """Imports TensorFlow, bounds its threads and lets a GPU's memory grow as it is needed.

    Parts of TensorFlow log before its log level is read, so the level alone does not help.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with _interrupt_kept(), _standard_error_held():
        import keras  # noqa: F401
        import tensorflow as tf
        import tensorflow_probability  # noqa: F401

        if threads is not None:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(threads)
        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)
        tf.constant(0)  # makes the devices, which logs too
