"""Rainbow (Hessel et al. 2018) in TensorFlow 2 and Keras 3."""

import sys

__version__ = "0.1.0"


def _excepthook(kind, error, traceback) -> None:
    """A Ctrl-C while a command's modules are imported is no failure to be traced."""
    if issubclass(kind, KeyboardInterrupt):
        print("rainbow_tf: interrupted.", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)


# The name that Python gives a command which it still looks for: `python -m rainbow_tf.main`.
if sys.argv[:1] == ["-m"]:
    sys.excepthook = _excepthook
