"""The `cosformer` command: main.py gathers the verbs, one file each."""
