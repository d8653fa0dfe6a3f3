"""What this process does to itself: a quiet start of TensorFlow, and stop signals."""

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any


class StopSignals:
    """Records the first Ctrl-C or SIGTERM for an orderly end; `second` handles the next one."""

    def __init__(self, *, second: Callable[[int, Any], Any] | signal.Handlers):
        self.requested = False
        self._second = second

    def install(self) -> None:
        """Handles the signals from here on."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._request)

    def _request(self, number: int, frame: object) -> None:
        self.requested = True
        signal.signal(number, self._second)


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
def _interrupt_kept() -> Iterator[None]:
    """Raises KeyboardInterrupt for a Ctrl-C inside, even if the code there swallows it.

    A native module that is interrupted during its import raises ImportError instead.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # ignored, or handled by other code
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
    """Imports TensorFlow without its log lines; sets its threads and lets GPU memory grow.

    Parts of TensorFlow log before its log level is read, so the level alone is not enough.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with _interrupt_kept(), _standard_error_held():
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
