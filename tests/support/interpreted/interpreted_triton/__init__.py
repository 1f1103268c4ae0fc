"""Lets vLLM use Triton on a CPU, where Triton's interpreter runs the kernels.

vLLM's second model runner needs Triton, and vLLM uses Triton on a CPU only where a backend of that
name is installed. Triton finds this one by its entry point: put the folder that holds this package
into PYTHONPATH, and set TRITON_INTERPRET=1.
"""
