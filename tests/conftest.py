"""Shared by all tests: one thread a process, and nothing leaves this machine."""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

# Language models, oracles, runs in small and dense derivatives that several files of tests use.
sys.path.insert(0, str(Path(__file__).parent / "languages"))
sys.path.insert(0, str(Path(__file__).parent / "models"))
sys.path.insert(0, str(Path(__file__).parent / "training"))
sys.path.insert(0, str(Path(__file__).parent / "flatness"))

import torch

torch.set_num_threads(1)
