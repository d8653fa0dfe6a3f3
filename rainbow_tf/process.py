"""What a process does to itself: a quiet start of TensorFlow, imports by name, stop signals."""

import contextlib
import importlib
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

from rainbow_tf.config import ConfigError

# Environments and networks that were given as Python objects, by their names in the settings.
given: dict[str, Callable[..., Any]] = {}
untrusted: set[str | None] = set()  # names that only a run folder gave, not the user
INTERRUPTED = 128 + signal.SIGINT  # the exit status that shells expect


class StopSignals:
    """Records the first Ctrl-C or SIGTERM for an orderly end; `second` handles the next one.

    Without `second`, the next one has its usual effect. Only the main thread gets signals.
    """

    def __init__(self, *, second: Callable[[int, Any], Any] | signal.Handlers | None = None):
        self.number: int | None = None  # of the first signal
        self._second = second
        self._usual: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._usual.items():
            signal.signal(number, handler)

    def install(self) -> None:
        """Handles the signals from here on, to the end of the `with` block if there is one."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._usual[number] = signal.signal(number, self._request)

    @property
    def requested(self) -> bool:
        """Whether a signal came."""
        return self.number is not None

    def _request(self, number: int, frame: object) -> None:
        self.number = number
        signal.signal(number, self._usual[number] if self._second is None else self._second)


@contextlib.contextmanager
def _standard_error_held() -> Iterator[None]:
    """Holds back what native code writes to standard error; shows it only after a failure."""
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
def _interrupts_delayed() -> Iterator[None]:
    """Delivers a Ctrl-C at the end: a native module reports one as a failed import."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def one_line(error: object) -> str:
    """An error of foreign code, for a sentence of ours: printable, without TensorFlow's nodes."""
    text = re.sub(r"\{\{.*?\}\} ?", "", str(error)[:2000]) or repr(error).removesuffix("()")
    return printable(text)[:300].rstrip(".")


def printable(text: str) -> str:
    """A text on one line, without control characters, which could drive a terminal."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


@contextlib.contextmanager
def optional(needed_by: str, extra: str) -> Iterator[None]:
    """Says how to install an extra if an import from it fails."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"{needed_by} needs packages that are not installed; pip install "
            f"'rainbow_tf[{extra}]', or from a clone pip install -e '.[{extra}]'."
        ) from error


def check_trusted(flag: str, value: str | None) -> None:
    """Refuses to import code that only a run folder names."""
    if value is not None and ":" in value and value in untrusted and value not in given:
        raise ConfigError(
            f"The run folder names Python code to import; if you trust it, give --{flag}={value}, "
            f"or {flag}= from Python."
        )


def named_object(flag: str, value: str) -> Any:
    """The object of a flag's module:name, given from Python or imported; None if it has none."""
    module, _, name = value.partition(":")
    if value in given:
        return given[value]
    check_trusted(flag, value)
    try:
        return getattr(importlib.import_module(module), name, None)
    except Exception as error:  # a module can raise anything
        raise ConfigError(
            f"--{flag}={value} cannot be imported ({one_line(error)}); the module "
            f"{module} must be installed or in the working folder."
        ) from error


def load_tensorflow(threads: int | None = None) -> None:
    """Imports TensorFlow without its log lines; sets its threads and lets GPU memory grow.

    Parts of TensorFlow log before its log level is read, so the level alone is not enough.
    """
    with _interrupts_delayed(), _standard_error_held():
        import keras  # noqa: F401
        import tensorflow as tf
        import tensorflow_probability  # noqa: F401

        if threads is not None:
            with contextlib.suppress(RuntimeError):  # TensorFlow runs already and keeps its threads
                tf.config.threading.set_intra_op_parallelism_threads(threads)
                tf.config.threading.set_inter_op_parallelism_threads(threads)
        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)
        tf.constant(0)  # creates the devices, which logs too
