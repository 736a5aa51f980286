"""Reference suite for "Why are Sensitive Functions Hard for Transformers?" (Hahn and Rofin 2024).

    pytest --modelprops --modelprops-suite hahn-rofin [--modelprops-preset standard]
    python -m modelprops.suites.hahn_rofin --preset standard --out reports/hahn_rofin

The first checks the claims at a preset's sizes, the second runs everything and writes the report.
"""
