"""The Hypothesis settings profile `modelprops`: registered on import, in force with `--hypothesis-profile modelprops`.

No deadline (the first pass of a model is slower than the rest), failures printed with a `@reproduce_failure` line, and
no complaint about examples that are large because they hold a batch. Imports no torch.
"""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

NAME = "modelprops"

settings.register_profile(
    NAME,
    deadline=None,
    print_blob=True,
    # Not `explain`, which traces every line that torch runs: slow, and it names lines of torch.
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
