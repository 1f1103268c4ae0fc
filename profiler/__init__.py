"""Measure a device and the cost of a model's engine steps on it, fit a roofline and store both.

The package imports nothing else of FlashEdge and no vLLM, and torch only in a separate process. The
caller provides a probe for each model (`probes.ModelProbe`).

    errors.py      ProfileError
    device.py      the name of the device, for the fingerprint of a profile
    gpu.py         the state of NVIDIA cards by NVML: throttling, display, memory
    card_watch.py  errors that the driver reports while a program runs: Xid, a lost card, heat
    datasheet.py   peak figures of known cards
    bench.py       GEMM, memory, transfer and launch figures, in a separate process
    probes.py      the cost of a model's engine steps, measured by a probe
    roofline.py    the fit: overhead + max(compute, memory)
    measure.py     a complete profile within a time limit
    profile.py     the JSON file, and whether it fits this device
    memory_record.py  what engines took beside their KV cache
    report.py      rows for tables and lines for plots
"""
