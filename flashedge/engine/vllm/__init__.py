"""The real engines: vLLM 0.32, one process for the generator and one for the verifier.

This is the only folder that imports vllm. The modules in `inside` run in vLLM's processes, the
others in the daemon. `compat` lists what they depend on in vLLM's internals, `inside.patches` what
they change there.
"""
