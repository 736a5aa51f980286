"""Shared by every test: the pytester fixture, offline model hubs, one torch thread per xdist worker."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

pytest_plugins = ["pytester"]
