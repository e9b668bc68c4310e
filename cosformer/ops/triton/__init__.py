"""The GPU backend: Triton kernels (kernels.py) and how they are called (launch.py). Alone imports triton."""
