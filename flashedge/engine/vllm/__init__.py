"""The real engines: vLLM 0.32, one process for the generator, one for the verifier.

The only folder that imports vllm. What it overrides of vLLM's internals is listed in `compat`.
"""
