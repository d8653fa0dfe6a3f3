"""Packaging: the top-level folders flags/ and export/ install inside rainbow_tf."""

from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = next(
    line.split('"')[1]
    for line in (ROOT / "rainbow_tf/__init__.py").read_text().splitlines()
    if line.startswith("__version__")
)
MINATAR = ["minatar>=1.0.15"]
SERVING = ["tensorflow-serving-api>=2.20,<2.22"]
RAY = ["ray[default]>=2.60", "rich>=13"]
RECORD = ["pygame-ce>=2.5"]
DOCS = ["mkdocs>=1.6,<2", "mkdocs-material>=9.5,<10", "mkdocstrings-python>=1.16"]
NOTEBOOKS = ["ipykernel>=6.29", "nbclient>=0.10", "nbformat>=5.10"]
WANDB = ["wandb>=0.20"]
HUB = ["huggingface_hub>=1.0"]
VIDEO = ["gymnasium[classic-control]>=1.3", "imageio-ffmpeg>=0.6"]

setup(
    name="rainbow_tf",
    version=VERSION,
    description="Rainbow (Hessel et al. 2018) in TensorFlow 2 and Keras 3",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=[
        *find_packages(include=["rainbow_tf", "rainbow_tf.*"]),
        "rainbow_tf.flags",
        "rainbow_tf.export",
    ],
    package_dir={"rainbow_tf.flags": "flags", "rainbow_tf.export": "export"},
    package_data={
        "rainbow_tf": ["py.typed"],
        "rainbow_tf.flags": ["*.cfg", "*/*.cfg"],
        "rainbow_tf.export": ["serving/*"],
        "rainbow_tf.reporting": ["page.css"],
        "rainbow_tf.scoring": ["data/*"],
    },
    install_requires=[
        "absl-py>=1.4",
        "ale-py>=0.12.1",
        "filelock>=3.16",
        "gymnasium>=1.3",
        "keras>=3.13",
        "lz4>=4.3",
        "matplotlib>=3.9",
        "numpy>=2.1",
        "pillow>=10.3",
        "psutil>=5.9",
        "tensorboard>=2.20",
        "tensorflow>=2.20,<2.22",
        "tensorflow-probability[tf]>=0.25",
        "tf-keras>=2.20,<2.22",
        "tqdm>=4.66",
    ],
    entry_points={"console_scripts": ["rainbow-tf = rainbow_tf.cli:main"]},
    extras_require={
        "hub": HUB,
        "minatar": MINATAR,
        "ray": RAY,
        "record": RECORD,
        "serving": SERVING,
        "video": VIDEO,
        "wandb": WANDB,
        "dev": [
            *DOCS,
            *HUB,
            *MINATAR,
            *NOTEBOOKS,
            *RAY,
            *RECORD,
            *SERVING,
            *VIDEO,
            *WANDB,
            "hypothesis>=6.100",
            "mypy>=1.15",
            "opencv-python-headless>=4.10",
            "pytest>=8.3",
            "pytest-cov>=6.0",
            "pytest-xdist>=3.6",
            "pyyaml>=6.0",
            "ruff>=0.12",
        ],
    },
)
