"""The compiled CPU backend: C++ built on first use (build.py), called through ctypes (launch.py)."""
