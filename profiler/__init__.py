"""What a device can do and what a model's engine steps cost on it: measured, fitted, kept.

Imports nothing of FlashEdge, no vLLM, and torch only in a process of its own. Models are measured
through the probes that a caller hands in (`probes.ModelProbe`).

    errors.py      ProfileError
    device.py      which device this is: what a profile's fingerprint holds of it
    gpu.py         the state of NVIDIA cards by NVML: throttling, display, memory
    datasheet.py   what the maker says that known cards can do
    bench.py       GEMM, memory, transfer and launch figures (runs as a process)
    probes.py      engine steps of a model, through a probe
    roofline.py    the fit: overhead + max(compute, memory)
    measure.py     a whole profile, in a time limit
    profile.py     the JSON file, and whether it still fits
    report.py      figures and roofline as tables and lines
"""
