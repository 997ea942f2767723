"""Measurements that users run on their own machine: ``python -m torch_qmm.bench``."""
