"""Shared by every test: the pytester fixture, offline model hubs, one torch thread per xdist worker."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# `HYPOTHESIS_PROFILE=ci`: the same examples in every run, and no clock.
if profile := os.environ.get("HYPOTHESIS_PROFILE"):
    from hypothesis import settings

    settings.register_profile("ci", derandomize=True, deadline=None, database=None, print_blob=True)
    settings.load_profile(profile)

pytest_plugins = ["pytester"]
