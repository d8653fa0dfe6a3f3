import os

# The tests' own processes and the commands they start: no start-up notes of TensorFlow.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
