"""Reference suite for "Noise Stability of Transformer Models" (Haris, Zhang and Yoshida 2026).

    pytest --modelprops --modelprops-suite noise-stability [--modelprops-preset standard]
    python -m modelprops.suites.noise_stability --preset standard --out reports/noise_stability

The first checks what must hold, the second runs everything and writes the report. Both read `PRESETS`.
"""
